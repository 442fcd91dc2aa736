"""Token counts and texts read out of answers that are passed on: OpenAI's fields, and estimates."""

from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ganglion.core.events import Usage

Count = Annotated[int, Meta(ge=0, le=2**40)]


class UsageReading(Struct, frozen=True):
    """The usage in a body or an event."""

    usage: Usage | None
    is_all: bool = False
    """Whether it says nothing else."""


class _Details(Struct, frozen=True):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


_UNSAID = _Details()
NOTHING = Usage(0, 0)


class _Counts(Struct):
    """The names of chat completions, and those of Responses: each body has those of one."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _UsageFields(Struct):
    usage: _Counts | None = None
    choices: list[msgspec.Raw] | None = None


class _Function(Struct):
    arguments: str | None = None


class _Call(Struct):
    function: _Function | None = None


class _Turn(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    text: str | None = None
    message: _Turn | None = None


class _AnswerText(Struct):
    choices: list[_Choice] | None = None


_usage_fields = msgspec.json.Decoder(_UsageFields)
_answer_text = msgspec.json.Decoder(_AnswerText)
_BYTES_A_TOKEN = 4
"""About; for what nobody counted."""
_KEY = b'"usage":'


def read_usage(data: bytes, before: Usage | None = None) -> UsageReading | None:
    """The usage in JSON of OpenAI's wires; None where it is not JSON, or has another shape."""
    try:
        fields = _usage_fields.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    counts = fields.usage
    if counts is None:
        return UsageReading(before)
    return UsageReading(_usage(counts, before or NOTHING), fields.choices == [])


def _usage(counts: _Counts, before: Usage) -> Usage:
    if counts.prompt_tokens is not None:
        details = counts.prompt_tokens_details or _UNSAID
        spent = counts.completion_tokens_details or _UNSAID
        return Usage(
            counts.prompt_tokens,
            counts.completion_tokens or 0,
            details.cached_tokens or 0,
            spent.reasoning_tokens or 0,
        )
    cached = (counts.input_tokens_details or _UNSAID).cached_tokens or 0
    return Usage(
        max(counts.input_tokens or 0, before.prompt_tokens),
        max(counts.output_tokens or 0, before.completion_tokens),
        max(cached, before.cached_tokens),
        (counts.output_tokens_details or _UNSAID).reasoning_tokens or before.reasoning_tokens,
    )


def answer_texts(body: bytes) -> Iterable[str | None]:
    """All that was said in a whole answer of OpenAI's wires; raises msgspec.DecodeError."""
    for choice in _answer_text.decode(body).choices or ():
        turn = choice.message or _Turn()
        yield from (choice.text, turn.content, turn.reasoning_content, turn.reasoning)
        yield from (call.function.arguments for call in turn.tool_calls or () if call.function is not None)


def usage_of_body(body: bytes, read: Callable[[bytes, Usage | None], UsageReading | None]) -> Usage | None:
    """The counts in a whole JSON body, or in its last part; None where there are none."""
    at = body.rfind(_KEY)
    if at > 0:
        # Usage is mostly the last field: then what precedes it, vectors say, is never read.
        told = read(b"{" + body[at:], None)
        if told is not None:
            return told.usage
    told = read(body, None)
    return None if told is None else told.usage


def estimated_prompt(body: bytes) -> int:
    """About how many tokens a request's prompt is; never more than the request can take."""
    return len(body) // _BYTES_A_TOKEN


def estimated_answer(body: bytes, texts: Callable[[bytes], Iterable[str | None]]) -> int:
    """About how many tokens were said in a whole answer that does not tell."""
    try:
        size = sum(len(text.encode(errors="replace")) for text in texts(body) if text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return len(body) // _BYTES_A_TOKEN
    return -(-size // _BYTES_A_TOKEN)
