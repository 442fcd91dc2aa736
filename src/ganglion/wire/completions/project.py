"""Projects the events of completions, n for each prompt and interleaved, into the chunks of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Scored,
    Started,
    Token,
    Usage,
)
from ganglion.core.fold import Answer
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
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.logprobs import prompt_logprobs_of
from ganglion.wire.openai_errors import encode_error
from ganglion.wire.readout import TokenReadout, readouts_of
from ganglion.wire.usage import CompletionUsage, usage_of


def body(answers: Sequence[Answer], reply: CompletionReplyContext) -> bytes:
    """The whole answer; `answers` holds n for each prompt, in order."""
    completion = Completion(
        id=reply.id,
        created=reply.created_s,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=tuple(_choice(index, answers, reply) for index in range(len(answers))),
        usage=usage_of([answer.finished.usage for answer in answers], reply.per_prompt),
    )
    return _encode(completion)


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
_DONE = Frame(b"[DONE]")


@dataclass(slots=True)
class _Choice:
    """The state of one choice."""

    index: int
    scored: list[Token] = field(default_factory=list)
    has_echoed: bool = False
    offsets: TextOffsets = field(default_factory=TextOffsets)
    tokens: int = 0
    readout_concepts: int = 0
    so_far: Usage = Usage(0, 0)
    prompt_token_ids: tuple[int, ...] | None = None
    usage: Usage | None = None


class CompletionProjection:
    """Feed it every event of every choice; `is_done` says that its last frame is out."""

    def __init__(self, reply: CompletionReplyContext, choices: int = 1) -> None:
        self._reply = reply
        self._choices = [_Choice(index) for index in range(choices)]
        self._no_usage: UnsetType | None = UNSET if reply.usage_reporting == "never" else None
        self._waiting = choices
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether `[DONE]` or an error has been handed out."""
        return self._is_done

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The frames that this event of this choice adds; none once the stream is done."""
        if self._is_done:
            return []
        state = self._choices[choice]
        match event:
            case Delta(text=text, tokens=tokens):
                return self._more(state, text, tokens)
            case Opened():
                return self._echo(state)
            case Scored(tokens=tokens):
                state.scored.extend(tokens)
            case Started():
                state.readout_concepts = event.readout_concepts
                state.so_far = Usage(event.prompt_tokens, 0, event.cached_tokens)
                state.prompt_token_ids = event.prompt_token_ids
            case Progress() | Closed():
                pass
            case Finished():
                return self._finish(state, event)
            case Failed(error=error):
                self._is_done = True
                return [Frame(encode_error(error))]
            case _:
                assert_never(event)
        return []

    def tick(self) -> list[Frame | Comment]:
        """A comment: this wire has no frame that says nothing."""
        return [Comment()]

    def _echo(self, state: _Choice) -> list[Frame]:
        if not self._reply.is_echoed or state.has_echoed:
            return []
        state.has_echoed = True
        known = self._reply.echo(state.index)
        text = echoed_text(state.scored) if known is None else known
        state.offsets = TextOffsets(len(text))
        alternatives = self._reply.logprobs
        logprobs = None if alternatives is None else echoed_logprobs(state.scored, alternatives, text)
        state.scored.clear()
        return [self._chunk(state, text, logprobs)]

    def _more(self, state: _Choice, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        if self._reply.usage_reporting == "always":
            made = state.so_far.completion_tokens + len(tokens)
            state.so_far = replace(state.so_far, completion_tokens=made)
        logprobs: CompletionLogprobs | None = None
        if self._reply.logprobs is not None and tokens:
            state.tokens += len(tokens)
            logprobs = completion_logprobs(tokens, self._reply.logprobs, state.offsets)
        readout: list[TokenReadout] | UnsetType = UNSET
        if self._reply.has_readout:
            readout = readouts_of(tokens, state.readout_concepts) or UNSET
        if not text and logprobs is None and readout is UNSET:
            return []
        return [self._chunk(state, text, logprobs, readout)]

    def _finish(self, state: _Choice, finished: Finished) -> list[Frame]:
        frames = self._echo(state)
        state.usage = state.so_far = finished.usage
        logprobs = self._hidden(state, finished.usage)
        choice = CompletionChoice(
            text="",
            index=state.index,
            logprobs=logprobs,
            finish_reason=finish_of(finished.reason),
            token_ids=(finished.token_ids or ()) if self._reply.has_token_ids else UNSET,
            prompt_token_ids=(state.prompt_token_ids or ()) if self._reply.has_token_ids else UNSET,
        )
        frames.append(self._frame(choice))
        self._waiting -= 1
        if self._waiting:
            return frames
        if self._reply.usage_reporting != "never":
            frames.append(self._usage())
        frames.append(_DONE)
        self._is_done = True
        return frames

    def _hidden(self, state: _Choice, usage: Usage) -> CompletionLogprobs | None:
        if self._reply.logprobs is None or not self._reply.is_echoed:
            return None
        return hidden_logprobs(usage.completion_tokens - state.tokens, state.offsets.end)

    def _chunk(
        self,
        state: _Choice,
        text: str,
        logprobs: CompletionLogprobs | None,
        readout: list[TokenReadout] | UnsetType = UNSET,
    ) -> Frame:
        choice = CompletionChoice(text=text, index=state.index, logprobs=logprobs, readout=readout)
        return self._frame(choice)

    def _frame(self, choice: CompletionChoice) -> Frame:
        reply = self._reply
        chunk = Completion(
            id=reply.id,
            created=reply.created_s,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=(choice,),
            usage=self._no_usage if reply.usage_reporting != "always" else self._so_far(choice.index),
        )
        return Frame(_encode(chunk))

    def _so_far(self, choice: int) -> CompletionUsage:
        """The usage of one choice up to here; tokens that are not shown are counted at its end."""
        return usage_of([self._choices[choice].so_far])

    def _usage(self) -> Frame:
        reply = self._reply
        usages = [choice.usage for choice in self._choices if choice.usage is not None]
        chunk = Completion(
            id=reply.id,
            created=reply.created_s,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=(),
            usage=usage_of(usages, reply.per_prompt),
        )
        return Frame(_encode(chunk))
