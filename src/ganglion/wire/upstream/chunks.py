"""The schema of what chat servers send, in as far as an answer is made of it.

Everything may be left out or null: servers differ in what they repeat and what they leave away.
"""

from dataclasses import replace
from typing import Any

from msgspec import Raw, Struct

from ganglion.core.events import Alternative, Token


class UpstreamFunction(Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    """JSON as text; from some servers the object itself."""


class UpstreamCustomInput(Struct, frozen=True, gc=False):
    name: str | None = None
    input: str | None = None


class UpstreamToolCall(Struct, frozen=True, gc=False):
    index: int | None = None
    id: str | None = None
    function: UpstreamFunction | None = None
    custom: UpstreamCustomInput | None = None


class UpstreamDelta(Struct, frozen=True, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[UpstreamToolCall] | None = None
    function_call: UpstreamFunction | None = None


class UpstreamTopLogprob(Struct, frozen=True, gc=False):
    logprob: float
    token: str = ""
    bytes: list[int] | None = None
    id: int = -1
    """Only llama-server tells it."""


class UpstreamTokenLogprob(UpstreamTopLogprob, frozen=True, gc=False):
    top_logprobs: list[UpstreamTopLogprob] | None = None


class UpstreamLogprobs(Struct, frozen=True, gc=False):
    content: list[UpstreamTokenLogprob] | None = None


class UpstreamReadout(Struct, frozen=True, gc=False):
    id: int
    position: int
    values: list[list[float]]


class UpstreamChoice(Struct, frozen=True, gc=False):
    index: int = 0
    delta: UpstreamDelta | None = None
    message: UpstreamDelta | None = None
    """In place of deltas, from a server that does not stream."""
    finish_reason: str | None = None
    logprobs: UpstreamLogprobs | None = None
    readout: list[UpstreamReadout] | None = None
    stop_reason: str | int | None = None
    """vLLM's word for the string or token that ended the answer."""


class UpstreamPromptDetails(Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class UpstreamCompletionDetails(Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class UpstreamUsage(Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: UpstreamPromptDetails | None = None
    completion_tokens_details: UpstreamCompletionDetails | None = None


NO_ERROR = Raw()
NULL = b"null"


class UpstreamChunk(Struct, frozen=True, gc=False):
    """One frame of a stream."""

    choices: list[UpstreamChoice] | None = None
    usage: UpstreamUsage | None = None
    error: Raw = NO_ERROR
    object: str | None = None


_UNKNOWN_ID = -1
"""The id of a token where only its text is told."""


def chunk_tokens(choice: UpstreamChoice, position: int) -> tuple[Token, ...]:
    """The tokens in order; those whose position is not told are counted from `position`."""
    logprobs = (choice.logprobs.content if choice.logprobs is not None else None) or []
    readouts = choice.readout or []
    return tuple(
        _token(
            logprobs[place] if place < len(logprobs) else None,
            readouts[place] if place < len(readouts) else None,
            position + place,
        )
        for place in range(max(len(logprobs), len(readouts)))
    )


def _token(told: UpstreamTokenLogprob | None, read: UpstreamReadout | None, position: int) -> Token:
    token = Token(_UNKNOWN_ID, b"", position)
    if told is not None:
        top = tuple(Alternative(each.id, _piece(each), each.logprob) for each in told.top_logprobs or ())
        token = Token(told.id, _piece(told), position, told.logprob, top)
    if read is None:
        return token
    values = tuple(value for layer in read.values for value in layer)
    return replace(token, id=read.id, position=read.position, readout=values)


def _piece(told: UpstreamTopLogprob) -> bytes:
    if told.bytes is None:
        return told.token.encode(errors="replace")
    return bytes(byte & 255 for byte in told.bytes)
