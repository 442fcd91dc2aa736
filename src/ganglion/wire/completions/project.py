"""Projects the events of completions, n for each prompt and interleaved, into the chunks of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from ganglion.core.events import Finished, Opened, Started, Token, Usage
from ganglion.core.fold import Answer
from ganglion.wire.chunk_stream import ChunkProjection
from ganglion.wire.completions.completion_logprobs import (
    CompletionLogprobs,
    TextOffsets,
    completion_logprobs,
    echoed_logprobs,
    echoed_text,
    hidden_logprobs,
    joined,
)
from ganglion.wire.completions.schema import Completion, CompletionChoice, CompletionReplyContext, finish_of
from ganglion.wire.frame import Frame
from ganglion.wire.logprobs import prompt_logprobs_of
from ganglion.wire.readout import TokenReadout, readouts_of
from ganglion.wire.usage import CompletionUsage, usage_of


def body(answers: Sequence[Answer], reply: CompletionReplyContext) -> bytes:
    """The whole answer; `answers` holds n for each prompt, in order."""
    choices = tuple(_choice(index, answers, reply) for index in range(len(answers)))
    usage = usage_of([answer.finished.usage for answer in answers], reply.per_prompt)
    return _completion(reply, choices, usage)


def _choice(index: int, answers: Sequence[Answer], reply: CompletionReplyContext) -> CompletionChoice:
    answer, first = answers[index], answers[index - index % reply.per_prompt]
    known = reply.echo(index)
    echo = echoed_text(answer.scored) if known is None else known
    count = reply.prompt_logprobs
    return CompletionChoice(
        text=echo + "".join(block.text for block in answer.blocks),
        index=index,
        logprobs=None if reply.logprobs is None else _logprobs(answer, echo, reply.logprobs, reply.is_echoed),
        finish_reason=finish_of(answer.finished.reason),
        prompt_logprobs=UNSET if count is None else prompt_logprobs_of(first.scored, count),
        readout=readouts_of(answer.tokens, answer.readout_concepts) if reply.has_readout else UNSET,
        token_ids=(answer.finished.token_ids or ()) if reply.has_token_ids else UNSET,
        prompt_token_ids=(answer.prompt_token_ids or ()) if reply.has_token_ids else UNSET,
    )


def _logprobs(answer: Answer, echo: str, alternatives: int, is_echoed: bool) -> CompletionLogprobs:
    offsets = TextOffsets(len(echo))
    made = completion_logprobs(answer.tokens, alternatives, offsets)
    if not is_echoed:
        return made
    hidden = hidden_logprobs(answer.finished.usage.completion_tokens - len(answer.tokens), offsets.end)
    return joined((echoed_logprobs(answer.scored, alternatives, echo), made, hidden))


_encode = msgspec.json.Encoder().encode


def completion_projection(reply: CompletionReplyContext, choices: int = 1) -> ChunkProjection:
    """The stream of an answer with so many choices."""
    no_usage = UNSET if reply.usage_reporting == "never" else None
    chunks = [_CompletionChunks(reply, index, no_usage) for index in range(choices)]
    return ChunkProjection(chunks, None if no_usage is UNSET else partial(_usage_frame, reply))


def _usage_frame(reply: CompletionReplyContext, usages: list[Usage]) -> Frame:
    return Frame(_completion(reply, (), usage_of(usages, reply.per_prompt)))


def _completion(
    reply: CompletionReplyContext,
    choices: tuple[CompletionChoice, ...],
    usage: CompletionUsage | UnsetType | None,
) -> bytes:
    completion = Completion(
        id=reply.id,
        created=reply.created_s,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=choices,
        usage=usage,
    )
    return _encode(completion)


@dataclass(slots=True)
class _CompletionChunks:
    """One choice; its prompt goes out before all else where it is echoed."""

    reply: CompletionReplyContext
    index: int
    no_usage: UnsetType | None
    scored: list[Token] = field(default_factory=list)
    has_echoed: bool = False
    offsets: TextOffsets = field(default_factory=TextOffsets)
    tokens: int = 0
    readout_concepts: int = 0
    so_far: Usage = Usage(0, 0)
    """Tokens that are not shown are counted at the end."""
    prompt_token_ids: tuple[int, ...] | None = None

    def start(self, started: Started) -> None:
        self.readout_concepts = started.readout_concepts
        self.so_far = Usage(started.prompt_tokens, 0, started.cached_tokens)
        self.prompt_token_ids = started.prompt_token_ids

    def score(self, tokens: tuple[Token, ...]) -> None:
        self.scored.extend(tokens)

    def tick(self) -> list[Frame]:
        """None: this wire has no chunk that says nothing."""
        return []

    def open(self, opened: Opened) -> list[Frame]:
        return self._echo()

    def more(self, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        if self.reply.usage_reporting == "always":
            made = self.so_far.completion_tokens + len(tokens)
            self.so_far = replace(self.so_far, completion_tokens=made)
        logprobs: CompletionLogprobs | None = None
        if self.reply.logprobs is not None and tokens:
            self.tokens += len(tokens)
            logprobs = completion_logprobs(tokens, self.reply.logprobs, self.offsets)
        readout: list[TokenReadout] | UnsetType = UNSET
        if self.reply.has_readout:
            readout = readouts_of(tokens, self.readout_concepts) or UNSET
        if not text and logprobs is None and readout is UNSET:
            return []
        return [
            self._chunk(CompletionChoice(text=text, index=self.index, logprobs=logprobs, readout=readout))
        ]

    def finish(self, finished: Finished) -> list[Frame]:
        frames = self._echo()
        self.so_far = finished.usage
        choice = CompletionChoice(
            text="",
            index=self.index,
            logprobs=self._hidden(finished.usage),
            finish_reason=finish_of(finished.reason),
            token_ids=(finished.token_ids or ()) if self.reply.has_token_ids else UNSET,
            prompt_token_ids=(self.prompt_token_ids or ()) if self.reply.has_token_ids else UNSET,
        )
        frames.append(self._chunk(choice))
        return frames

    def _echo(self) -> list[Frame]:
        if not self.reply.is_echoed or self.has_echoed:
            return []
        self.has_echoed = True
        known = self.reply.echo(self.index)
        text = echoed_text(self.scored) if known is None else known
        self.offsets = TextOffsets(len(text))
        alternatives = self.reply.logprobs
        logprobs = None if alternatives is None else echoed_logprobs(self.scored, alternatives, text)
        self.scored.clear()
        return [self._chunk(CompletionChoice(text=text, index=self.index, logprobs=logprobs))]

    def _hidden(self, usage: Usage) -> CompletionLogprobs | None:
        if self.reply.logprobs is None or not self.reply.is_echoed:
            return None
        return hidden_logprobs(usage.completion_tokens - self.tokens, self.offsets.end)

    def _chunk(self, choice: CompletionChoice) -> Frame:
        is_running = self.reply.usage_reporting == "always"
        usage = usage_of([self.so_far]) if is_running else self.no_usage
        return Frame(_completion(self.reply, (choice,), usage))
