"""The shape of what chat servers send, in as far as an answer is made of it.

Everything may be left out or null: servers differ in what they repeat and what they leave away.
"""

from typing import Any

from msgspec import Raw, Struct


class HeardFunction(Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    """JSON as text; from some servers the object itself."""


class HeardCustom(Struct, frozen=True, gc=False):
    name: str | None = None
    input: str | None = None


class HeardCall(Struct, frozen=True, gc=False):
    index: int | None = None
    id: str | None = None
    function: HeardFunction | None = None
    custom: HeardCustom | None = None


class HeardDelta(Struct, frozen=True, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[HeardCall] | None = None
    function_call: HeardFunction | None = None


class HeardTop(Struct, frozen=True, gc=False):
    logprob: float
    token: str = ""
    bytes: list[int] | None = None
    id: int = -1


class HeardToken(Struct, frozen=True, gc=False):
    logprob: float
    token: str = ""
    bytes: list[int] | None = None
    id: int = -1
    """Only llama-server tells it."""
    top_logprobs: list[HeardTop] | None = None


class HeardLogprobs(Struct, frozen=True, gc=False):
    content: list[HeardToken] | None = None


class HeardReadout(Struct, frozen=True, gc=False):
    id: int
    position: int
    values: list[list[float]]


class HeardChoice(Struct, frozen=True, gc=False):
    index: int = 0
    delta: HeardDelta | None = None
    message: HeardDelta | None = None
    """In place of deltas, from a server that does not stream."""
    finish_reason: str | None = None
    logprobs: HeardLogprobs | None = None
    readout: list[HeardReadout] | None = None
    stop_reason: str | int | None = None
    """vLLM's word for the string or token that ended the answer."""


class HeardPromptDetails(Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class HeardCompletionDetails(Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class HeardUsage(Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: HeardPromptDetails | None = None
    completion_tokens_details: HeardCompletionDetails | None = None


NO_ERROR = Raw()
NULL = b"null"


class HeardChunk(Struct, frozen=True, gc=False):
    """One frame of a stream."""

    choices: list[HeardChoice] | None = None
    usage: HeardUsage | None = None
    error: Raw = NO_ERROR
    object: str | None = None
