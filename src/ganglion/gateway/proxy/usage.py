"""What an answer came to: token counts read out of bodies, as each wire tells them."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ganglion.core.events import Usage

Count = Annotated[int, Meta(ge=0, le=2**40)]


class _Details(Struct, frozen=True):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


_UNSAID = _Details()
_NOTHING = Usage(0, 0)


class _Counts(Struct):
    """OpenAI's names, Responses' and Anthropic's: each body has those of one."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Message(Struct):
    usage: _Counts | None = None


class UsageFields(Struct):
    """A body or an event, in as far as it speaks of usage; the last two are Ollama's."""

    usage: _Counts | None = None
    message: _Message | str | None = None
    choices: list[msgspec.Raw] | None = None
    prompt_eval_count: Count | None = None
    eval_count: Count | None = None


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


class _Block(Struct):
    text: str | None = None
    thinking: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _AnswerText(Struct):
    """A whole answer, in as far as a model said it: OpenAI's choices, Anthropic's content."""

    choices: list[_Choice] | None = None
    content: list[_Block] | None = None


_usage_fields = msgspec.json.Decoder(UsageFields)
_answer_text = msgspec.json.Decoder(_AnswerText)
BYTES_A_TOKEN = 4
"""About; for what nobody counted."""
_KEY = b'"usage":'


def read_usage_fields(data: bytes) -> UsageFields | None:
    """What JSON says of usage; None where it is not JSON, or says it in another way."""
    try:
        return _usage_fields.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def usage_from(told: UsageFields, before: Usage | None = None) -> Usage | None:
    """The counts; those of a stream are told in several places, each with what is known by then."""
    if told.prompt_eval_count is not None or told.eval_count is not None:
        return Usage(told.prompt_eval_count or 0, told.eval_count or 0)
    counts = told.usage
    if counts is None and isinstance(told.message, _Message):
        counts = told.message.usage
    return before if counts is None else _usage(counts, before or _NOTHING)


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
    cached = (counts.input_tokens_details or _UNSAID).cached_tokens or counts.cache_read_input_tokens or 0
    prompt = counts.input_tokens
    if prompt is not None and counts.input_tokens_details is None:
        # Anthropic counts what was cached beside the input, everybody else within it.
        prompt += (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)
    return Usage(
        max(prompt or 0, before.prompt_tokens),
        max(counts.output_tokens or 0, before.completion_tokens),
        max(cached, before.cached_tokens),
        (counts.output_tokens_details or _UNSAID).reasoning_tokens or before.reasoning_tokens,
    )


def usage_of_body(body: bytes) -> Usage | None:
    """The counts in a whole JSON body, or in its last part; None where there are none."""
    at = body.rfind(_KEY)
    if at > 0:
        # Usage is mostly the last field: then what precedes it, vectors say, is never read.
        told = read_usage_fields(b"{" + body[at:])
        if told is not None:
            return usage_from(told)
    told = read_usage_fields(body)
    return None if told is None else usage_from(told)


def estimated_prompt(body: bytes) -> int:
    """About how many tokens a request's prompt is; never more than the request can take."""
    return len(body) // BYTES_A_TOKEN


def estimated_answer(body: bytes) -> int:
    """About how many tokens were said in a whole answer that does not tell."""
    try:
        said = _answer_text.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return len(body) // BYTES_A_TOKEN
    texts: list[str | None] = []
    for choice in said.choices or ():
        turn = choice.message or _Turn()
        texts += (choice.text, turn.content, turn.reasoning_content, turn.reasoning)
        texts += (call.function.arguments for call in turn.tool_calls or () if call.function is not None)
    for block in said.content or ():
        texts += (block.text, block.thinking, bytes(block.input).decode(errors="replace"))
    size = sum(len(text.encode(errors="replace")) for text in texts if text)
    return -(-size // BYTES_A_TOKEN)
