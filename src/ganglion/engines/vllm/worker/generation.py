"""One request inside the worker: from what vLLM says of it to what its client may see."""

from collections.abc import Iterable
from typing import Final, Literal

from vllm.logprobs import Logprob
from vllm.outputs import RequestOutput

from ganglion.core.events import Alternative, FinishReason, Piece, Token
from ganglion.engines.answer_text import AnswerText
from ganglion.engines.supervision.ipc import PieceRecord, SequenceEnd, SequenceUpdate, Submit, TokenRecord
from ganglion.engines.vllm.worker.checkpoint_vocabulary import CheckpointVocabulary

_Likely = dict[int, Logprob]
_NONE: Final[_Likely] = {}
_REASONS: Final[dict[str | None, FinishReason]] = {"stop": "stop", "length": "length"}
"""Others are vLLM's own failures, such as a format that it could not follow."""


class Generation:
    """Owns an answer's text; `take` is called with each output of vLLM, until `is_ended`."""

    def __init__(self, submit: Submit, vocabulary: CheckpointVocabulary, arrived_s: float) -> None:
        self.id = submit.id
        self.is_ended = False
        self._submit = submit
        self._vocabulary = vocabulary
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._position = len(submit.tokens)
        self._generated: list[int] = []
        self._text = AnswerText(submit, vocabulary.is_control)
        self._stop_tokens = frozenset(submit.stop.token_ids)
        self._ends = vocabulary.end_tokens
        # A format that is fulfilled allows an end and nothing else: that end is never ignored.
        self._ignores_end = submit.stop.ignore_eos and submit.grammar is None
        self._stop_token: int | None = None

    @property
    def tokens(self) -> list[int]:
        """All tokens so far, the one that ended the answer included."""
        return self._generated

    def take(self, output: RequestOutput, now_s: float) -> SequenceUpdate:
        """What an output means to the client."""
        started: tuple[int, int] | None = None
        scored: list[TokenRecord] = []
        if self._first_s is None:
            self._first_s = now_s
            started = len(self._submit.tokens), output.num_cached_tokens or 0
            scored = self._scored(output)
        [completion] = output.outputs
        pieces: list[Piece] = []
        reason: FinishReason | Literal["failed"] | None = None
        if self._submit.max_tokens == 0:
            reason = "length"
        else:
            likely = completion.logprobs or ()
            for number, token in enumerate(completion.token_ids):
                more, reason = self._advance(token, likely[number] if number < len(likely) else _NONE)
                pieces += more
                if reason is not None:
                    break
        if reason is None and output.finished:
            reason = _REASONS.get(completion.finish_reason, "failed")
            pieces += self._text.flushed()
        end = None if reason is None else self._end(reason, now_s)
        return SequenceUpdate(self.id, started, None, scored, self._records(pieces), end)

    def _advance(self, token: int, likely: _Likely) -> tuple[list[Piece], FinishReason | None]:
        """What one more token shows, and how the answer ends where it does."""
        record = self._token(token, likely)
        self._position += 1
        self._generated.append(token)
        is_end = token in self._ends and not self._ignores_end
        if is_end or token in self._stop_tokens:
            self._stop_token = token
            is_shown = self._submit.stop.is_shown and not is_end
            last = self._text.shown(record) + self._text.flushed() if is_shown else self._text.last(record)
            return last, "stop"
        pieces = self._text.shown(record)
        if self._text.matched is not None:
            return pieces, "stop"
        if len(self._generated) >= self._submit.max_tokens:
            return pieces + self._text.flushed(), "length"
        return pieces, None

    def _end(self, reason: FinishReason | Literal["failed"], now_s: float) -> SequenceEnd:
        self.is_ended = True
        first_s = self._first_s or now_s
        return SequenceEnd(
            reason=reason,
            completion_tokens=len(self._generated),
            stop_sequence=self._text.matched,
            queued_s=0.0,
            prefill_s=first_s - self._arrived_s,
            decode_s=now_s - first_s,
            error="vLLM gave the answer up." if reason == "failed" else None,
            stop_token=self._stop_token,
            token_ids=self._generated if self._submit.wants_token_ids else None,
        )

    def _token(self, token: int, likely: _Likely) -> Token:
        piece = self._vocabulary.piece(token)
        own = likely.get(token)
        if own is None or self._submit.top_logprobs is None:
            return Token(token, piece, self._position)
        top = tuple(Alternative(*each) for each in self._top(likely, self._submit.top_logprobs))
        return Token(token, piece, self._position, own.logprob, top)

    def _scored(self, output: RequestOutput) -> list[TokenRecord]:
        """The records of the prompt's tokens that were asked for."""
        found = output.prompt_logprobs
        if found is None or not self._submit.score_ranges:
            return []
        top = self._submit.score_top
        records = []
        for position in _positions(self._submit.score_ranges, len(self._submit.tokens)):
            token, likely = self._submit.tokens[position], found[position]
            if token < 0:  # a picture's row, which has no logprob
                continue
            piece = self._vocabulary.piece(token)
            if not likely:
                records.append(TokenRecord(token, piece, position))  # nothing stands before the first
                continue
            own = likely[token]
            rank = own.rank if top else None
            records.append(
                TokenRecord(token, piece, position, own.logprob, self._top(likely, top), rank=rank)
            )
        return records

    def _top(self, likely: _Likely, count: int) -> list[tuple[int, bytes, float]]:
        """The `count` likeliest tokens, likeliest first; the chosen one may stand among them or behind."""
        ordered = sorted(likely.items(), key=lambda each: each[1].rank or 0)[:count]
        return [(token, self._vocabulary.piece(token), each.logprob) for token, each in ordered]

    def _records(self, pieces: list[Piece]) -> list[PieceRecord]:
        return [
            PieceRecord(piece.text, piece.is_special, [_record(token) for token in piece.tokens])
            for piece in pieces
        ]


def _record(token: Token) -> TokenRecord:
    top = [(each.id, each.piece, each.logprob) for each in token.top]
    return TokenRecord(token.id, token.piece, token.position, token.logprob, top)


def _positions(ranges: Iterable[tuple[int, int | None]], length: int) -> list[int]:
    """The positions in some ranges, each once and in order."""
    found: set[int] = set()
    for start, end in ranges:
        found.update(range(start, length if end is None else min(end, length)))
    return sorted(found)
