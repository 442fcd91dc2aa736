"""Messages as a proxy knows them: events that have names, and usage that is told in several places."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct

from ganglion.core.events import Usage
from ganglion.wire.proxy_dialect import (
    ABSENT,
    Part,
    Peeked,
    ProxyDialect,
    StreamMarks,
    body_reader,
    opening,
)
from ganglion.wire.proxy_usage import NOTHING, Count, UsageReading
from ganglion.wire.token_bound import bound_chat


class _Metadata(Struct):
    user_id: str | None = None


class _MessagesFields(Struct):
    model: str | None = None
    stream: bool | None = None
    system: Raw = ABSENT
    messages: list[Raw] | None = None
    metadata: _Metadata | None = None


class _MessagesCounts(Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Message(Struct):
    usage: _MessagesCounts | None = None


class _MessagesUsage(_Message):
    message: _Message | None = None


class _Block(Struct):
    text: str | None = None
    thinking: str | None = None
    input: Raw = Raw()


class _MessagesText(Struct):
    content: list[_Block] | None = None


_usage_fields = msgspec.json.Decoder(_MessagesUsage)
_answer_text = msgspec.json.Decoder(_MessagesText)


def _peek(fields: _MessagesFields) -> Peeked:
    user = "" if fields.metadata is None else fields.metadata.user_id or ""
    # Claude Code names its session here, and moves its cache marks from message to message.
    if "session" in user:
        parts: tuple[Part, ...] = (user,)
    else:
        parts = (bytes(fields.system), *opening(fields.messages))
    return Peeked(fields.model or "", bool(fields.stream), False, parts)


def _read_usage(data: bytes, before: Usage | None) -> UsageReading | None:
    try:
        fields = _usage_fields.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    counts = fields.message.usage if fields.usage is None and fields.message is not None else fields.usage
    if counts is None:
        return UsageReading(before)
    before = before or NOTHING
    cached = counts.cache_read_input_tokens or 0
    prompt = counts.input_tokens
    if prompt is not None:
        # This wire counts what was cached beside the input, all others within it.
        prompt += cached + (counts.cache_creation_input_tokens or 0)
    return UsageReading(
        Usage(
            max(prompt or 0, before.prompt_tokens),
            max(counts.output_tokens or 0, before.completion_tokens),
            max(cached, before.cached_tokens),
            before.reasoning_tokens,
        )
    )


def _answer_texts(body: bytes) -> Iterable[str | None]:
    for block in _answer_text.decode(body).content or ():
        yield from (block.text, block.thinking, bytes(block.input).decode(errors="replace"))


PROXY = ProxyDialect(
    peek=body_reader(_MessagesFields, _peek),
    bound=bound_chat,
    marks=StreamMarks(
        ends=(b"event: message_stop", b"event:message_stop"), usual_end=None, text=b'"content_block_delta"'
    ),
    read_usage=_read_usage,
    answer_texts=_answer_texts,
)
