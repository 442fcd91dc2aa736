"""One request inside the worker: from sampled token to text that may be shown."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from ganglion.core.events import Alternative, FinishReason, Piece, Token
from ganglion.core.request import PLACEHOLDER
from ganglion.engines.answer_text import AnswerText
from ganglion.engines.concepts.steering import variant_of
from ganglion.engines.llama.grammar.matcher import GrammarMatcher, OffGrammar
from ganglion.engines.llama.native.arrays import Floats, Ids
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.picture_rows import PictureRows
from ganglion.engines.llama.worker.pictures import KeptPicture
from ganglion.engines.llama.worker.sampling import NotANumber, NothingLeft, Sampler, check_drawn, logprobs
from ganglion.engines.llama.worker.scoring import PromptRecords, Vocabulary
from ganglion.engines.supervision.ipc import PieceRecord, SequenceEnd, SequenceUpdate, Submit, TokenRecord
from ganglion.scheduler.pictures import Picture
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.spans import Spans, clipped, merged, shifted, without
from ganglion.scheduler.step import Chunk


class Job:
    """Owns a request's sampler and text state; `take` is called once for each of its sampled tokens.

    Law: a token whose readout is wanted is reported once it has run, one step after it was sampled. One that
    ends the answer is run too, and the end is reported with it.
    """

    def __init__(
        self,
        submit: Submit,
        model: NativeModel,
        vocabulary: Vocabulary,
        arrived_s: float,
        matcher: GrammarMatcher | None = None,
        *,
        readout: Spans = (),
        reads_outputs: bool = False,
        samples_in_graph: bool = False,
        images: tuple[KeptPicture, ...] = (),
    ) -> None:
        """`readout` are the positions to read; `reads_outputs` says that this takes their logits.

        `images` are those that the request names, in its order; whoever ends the job lets go of them.
        """
        self.id = submit.id
        self.prompt_hash = hash(tuple(submit.tokens))
        self._submit = submit
        self._vocabulary = vocabulary
        self._stop = submit.stop
        self._stop_tokens = frozenset(submit.stop.token_ids)
        self._matcher = matcher
        self._withheld = _withheld(submit, vocabulary) if submit.min_tokens else None
        self._sampler = Sampler(
            model,
            submit.sampling,
            [token for token in submit.tokens if token >= 0] if images else submit.tokens,
            ignore_eos=submit.stop.ignore_eos,
        )
        self._text = AnswerText(submit, lambda token: vocabulary[token][1])
        is_plain = matcher is None and self._withheld is None and submit.top_logprobs is None
        needs_rows = submit.score_ranges or (reads_outputs and readout)
        self.draw = self._sampler.graph_draw() if samples_in_graph and is_plain and not needs_rows else None
        """What the graph may draw for this job; None where its logits are wanted on the host."""
        self._first_token_s: float | None = None
        self._stop_token: int | None = None
        self._final: int | None = None
        """The last token, once it is known that it does not run."""
        self.is_announced = False
        self.is_steered = bool(submit.steering)
        """Whether a client's vectors move the residual stream, so that NaN says nothing about the device."""
        self.images = images
        self._starts = tuple(start for start, _ in submit.images)
        pictures = tuple(
            picture
            for start, image in zip(self._starts, images, strict=True)
            for picture in image.pictures(start)
        )
        scored = merged(submit.score_ranges, len(submit.tokens))
        for picture in pictures:  # what stands there has no logprob
            scored = without(scored, picture.start, picture.end)
        self.scores_first = bool(scored) and scored[0][0] == 0 and not clipped(readout, 0, 1)
        """Whether the first token is asked for, which has no logprob, and is not read either."""
        self.score_top = submit.score_top
        self._scoring_spans = shifted(scored, -1)
        """The positions whose logits score the tokens that are scored: each the one before."""
        read = clipped(readout, 0, len(submit.tokens)) if reads_outputs else ()
        self._prompt = PromptRecords(readout, self._unscored)
        self._readouts: dict[int, bytes] = {}
        """Of generated tokens that are not reported yet, by position."""
        self._early: list[Piece] = []
        """What may be shown once the last token has run."""
        self._reason: FinishReason | None = None
        """How the answer ends once its last token has run."""
        self.sequence = Sequence.new(
            submit.id,
            salt=submit.salt,
            tokens=list(submit.tokens),
            max_tokens=submit.max_tokens,
            priority=submit.priority,
            arrived_s=arrived_s,
            logit_spans=merged([*self._scoring_spans, *read], len(submit.tokens)),
            readout=readout,
            variant=variant_of(submit.steering),
            pictures=pictures,
        )

    def rows(self) -> Iterator[tuple[Picture, PictureRows]]:
        """The pictures whose rows are there, with the rows."""
        placed = iter(self.sequence.pictures)
        for image in self.images:
            rows = iter(image.rows)
            for stretch in image.stretches:
                if stretch.rows:
                    picture = next(placed)
                    if image.rows:
                        yield picture, next(rows)

    def image_of(self, picture: Picture) -> KeptPicture:
        """The image that a picture of the sequence is a part of."""
        return next(
            image
            for start, image in reversed(list(zip(self._starts, self.images, strict=True)))
            if start <= picture.start
        )

    def scoring_spans(self, chunk: Chunk) -> Spans:
        """The positions of a chunk whose logits score the tokens after them."""
        unread = max(chunk.start, self.sequence.read_tokens)
        return clipped(self._scoring_spans, unread, chunk.start + chunk.count)

    def note(self, scored: list[TokenRecord], readouts: list[tuple[int, bytes]]) -> SequenceUpdate:
        """Take in what a chunk was scored and read; returns what can be reported of the prompt."""
        border = self.sequence.prompt_tokens
        self._readouts.update(each for each in readouts if each[0] >= border)
        records = self._prompt.merge(scored, (each for each in readouts if each[0] < border))
        return SequenceUpdate(self.id, scored=records)

    def read(self, done: int, now_s: float) -> SequenceUpdate:
        """So many tokens have their KV; a job that generates nothing more ends with all of them."""
        prefilled = done, len(self.sequence.tokens)
        if done < prefilled[1]:
            return SequenceUpdate(self.id, prefilled=prefilled)
        if self._reason is not None:
            end = self._end(self._reason, self.sequence.generated_tokens, now_s)
            return SequenceUpdate(self.id, pieces=self._records(self._early), end=end)
        self._first_token_s = now_s
        end = self._end("length", 0, now_s)
        return SequenceUpdate(self.id, prefilled=prefilled, end=end)

    def fail(self, error: NotANumber, now_s: float) -> SequenceUpdate:
        """End with an error that is this job's alone."""
        end = self._end("failed", self.sequence.generated_tokens, now_s, error)
        return SequenceUpdate(self.id, pieces=self._records(self._early), end=end)

    def take(
        self, context: NativeContext, row: int, context_length: int, now_s: float
    ) -> tuple[int | None, SequenceUpdate]:
        """Sample the next token; returns it, or None when the job ended with it."""
        if self._first_token_s is None:
            self._first_token_s = now_s
        try:
            return self._advance(context, row, context_length, now_s)
        except (NotANumber, OffGrammar) as error:
            return None, self._ended("failed", [], now_s, error=error)
        except NothingLeft:
            return None, self._stuck(now_s)

    def free(self) -> None:
        """Give native memory back."""
        self._sampler.free()

    def _advance(
        self, context: NativeContext, row: int, context_length: int, now_s: float
    ) -> tuple[int | None, SequenceUpdate]:
        token, record = self._choose(context, row)
        count = self.sequence.generated_tokens + 1
        is_end = token in self._vocabulary.end_tokens and not self._stop.ignore_eos
        if is_end or token in self._stop_tokens:
            self._stop_token = token
            is_shown = self._stop.is_shown and not is_end
            last = self._text.shown(record) + self._text.flushed() if is_shown else self._text.last(record)
            return self._closed("stop", record, last, now_s)
        if self._matcher is not None:
            self._matcher.follow(token)
        pieces = self._text.shown(record)
        if self._text.matched is not None:
            return self._closed("stop", record, pieces, now_s)
        if self._matcher is not None and self._matcher.is_complete:
            return self._closed("stop", record, pieces + self._text.flushed(), now_s)
        if count >= self._submit.max_tokens or len(self.sequence.tokens) + 1 >= context_length:
            return self._closed("length", record, pieces + self._text.flushed(), now_s)
        if self._matcher is not None:
            self._matcher.look_ahead()
        return token, SequenceUpdate(self.id, pieces=self._records(self._timely(record, pieces)))

    def _closed(
        self, reason: FinishReason, token: Token, pieces: list[Piece], now_s: float
    ) -> tuple[int | None, SequenceUpdate]:
        """The end that a token brings: now, or once it has run where its readout is wanted."""
        if not self._is_early(token, pieces):
            self._final = token.id
            return None, self._ended(reason, pieces, now_s)
        self._reason = reason
        self.sequence.is_ending = True
        return token.id, SequenceUpdate(self.id, pieces=self._records(self._timely(token, pieces)))

    def _timely(self, token: Token, pieces: list[Piece]) -> list[Piece]:
        """What can be shown now that a token was sampled: what waited for the last one, and what it adds."""
        waited, self._early = self._early, []
        if not self._is_early(token, pieces):
            return waited + pieces
        self._early = pieces
        return waited

    def _is_early(self, token: Token, pieces: list[Piece]) -> bool:
        """Whether pieces show a token that is to be read and has not run yet."""
        if not clipped(self.sequence.readout, token.position, token.position + 1):
            return False
        return any(shown is token for piece in pieces for shown in piece.tokens)

    def _choose(self, context: NativeContext, row: int) -> tuple[int, Token]:
        position = len(self.sequence.tokens)
        count = self._submit.top_logprobs
        if self.draw is not None and self.draw.is_in_graph:
            token, total = context.drawn(row)
            check_drawn(total)
            return token, Token(token, self._vocabulary[token][0], position)
        logits = context.logits(row)
        if count is None:
            token = self._draw(context, row, logits)
            return token, Token(token, self._vocabulary[token][0], position)
        raw = logits.copy()
        token = self._draw(context, row, logits)
        normaliser, likeliest = logprobs(raw, count)
        top = tuple(Alternative(each, self._vocabulary[each][0], value) for each, value in likeliest)
        return token, Token(token, self._vocabulary[token][0], position, float(raw[token]) - normaliser, top)

    def _draw(self, context: NativeContext, row: int, logits: Floats) -> int:
        if self._matcher is None and self._withheld is None:
            return self._sampler.choose(context, row, logits)
        is_short = self.sequence.generated_tokens < self._submit.min_tokens
        return self._sampler.choose(
            context,
            row,
            logits,
            withheld=self._withheld if is_short else None,
            forbidden=self._matcher.forbidden() if self._matcher is not None else None,
        )

    def _stuck(self, now_s: float) -> SequenceUpdate:
        """The end where no token is left: a grammar that is satisfied outranks whatever forbade the rest."""
        if self._matcher is not None and self._matcher.is_accepting:
            return self._ended("stop", self._text.flushed(), now_s)
        error = OffGrammar("No token of the model fits the answer's grammar here.")
        return self._ended("failed", [], now_s, error=error)

    def _ended(
        self,
        reason: FinishReason | Literal["failed"],
        pieces: list[Piece],
        now_s: float,
        error: NotANumber | OffGrammar | None = None,
    ) -> SequenceUpdate:
        end = self._end(reason, self.sequence.generated_tokens + 1, now_s, error)
        return SequenceUpdate(self.id, pieces=self._records(self._early + pieces), end=end)

    def _end(
        self,
        reason: FinishReason | Literal["failed"],
        completion_tokens: int,
        now_s: float,
        error: NotANumber | OffGrammar | None = None,
    ) -> SequenceEnd:
        sequence = self.sequence
        admitted_s = sequence.admitted_s if sequence.admitted_s is not None else now_s
        first_s = self._first_token_s if self._first_token_s is not None else now_s
        return SequenceEnd(
            reason=reason,
            completion_tokens=completion_tokens,
            stop_sequence=self._text.matched,
            queued_s=admitted_s - sequence.arrived_s,
            prefill_s=first_s - admitted_s,
            decode_s=now_s - first_s,
            error=error.message if error is not None else None,
            code=error.code if isinstance(error, OffGrammar) else None,
            stop_token=self._stop_token,
            token_ids=self._generated() if self._submit.wants_token_ids else None,
        )

    def _generated(self) -> list[int]:
        """All tokens so far; the last one is not part of the sequence where the answer ends with it."""
        made = self.sequence.tokens[self.sequence.prompt_tokens :]
        return made if self._final is None else [*made, self._final]

    def _unscored(self, position: int) -> TokenRecord:
        token = self.sequence.tokens[position]
        if token < 0:
            return TokenRecord(PLACEHOLDER, b"", position)
        return TokenRecord(token, self._vocabulary[token][0], position)

    def _records(self, pieces: list[Piece]) -> list[PieceRecord]:
        return [
            PieceRecord(piece.text, piece.is_special, [self._record(token) for token in piece.tokens])
            for piece in pieces
        ]

    def _record(self, token: Token) -> TokenRecord:
        top = [(each.id, each.piece, each.logprob) for each in token.top]
        readout = self._readouts.pop(token.position, b"")
        return TokenRecord(token.id, token.piece, token.position, token.logprob, top, readout)


def _withheld(submit: Submit, vocabulary: Vocabulary) -> Ids:
    """The tokens that would end an answer before it is as long as it must be."""
    ends = vocabulary.end_tokens.union(submit.stop.token_ids)
    return np.fromiter(ends, np.int64, len(ends))
