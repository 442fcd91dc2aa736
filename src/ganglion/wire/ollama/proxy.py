"""Ollama's wire as a proxy knows it: a line an event, the last with the counts; some calls unload models."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from ganglion.core.events import Usage
from ganglion.wire.decode import FIELDS
from ganglion.wire.ollama.options import is_unloading
from ganglion.wire.proxy_dialect import (
    ABSENT,
    PROMPT_PREFIX_BYTES,
    Part,
    Peeked,
    ProxyDialect,
    StreamMarks,
    body_reader,
    opening,
)
from ganglion.wire.proxy_usage import Count, UsageReading
from ganglion.wire.token_bound import (
    MAX_TOKENS,
    BoundedMessage,
    TokenBound,
    bound_prompt,
    bound_reader,
    bound_with_answers,
    list_length,
    media_in_message,
)

_UNLOADING: Final = {b"/api/chat": "messages", b"/api/generate": "prompt"}
"""Calls that unload a model when they leave out this field and say so."""


class _OllamaFields(Struct):
    model: str | None = None
    stream: bool | None = None
    messages: list[Raw] | None = None
    system: Raw = ABSENT
    prompt: str | None = None


class _Options(Struct):
    num_predict: int | None = None


class _OllamaBound(BoundedMessage):
    options: _Options | None = None
    messages: list[BoundedMessage] | None = None
    tools: Raw = ABSENT


class _OllamaUsage(Struct):
    prompt_eval_count: Count | None = None
    eval_count: Count | None = None


_duration = msgspec.json.Decoder(float | str | None)
_usage_fields = msgspec.json.Decoder(_OllamaUsage)
_encode = msgspec.json.encode


def _peek(fields: _OllamaFields) -> Peeked:
    parts: tuple[Part, ...] = opening(fields.messages)
    if fields.prompt is not None:
        parts = (bytes(fields.system), fields.prompt[:PROMPT_PREFIX_BYTES])
    return Peeked(fields.model or "", fields.stream is not False, False, parts)


def _bound(fields: _OllamaBound, size: int) -> TokenBound:
    most = None if fields.options is None else fields.options.num_predict
    media = sum(map(media_in_message, fields.messages or ())) + list_length(fields.images)
    prompt = bound_prompt(size, fields.tools, media)
    # 0 and less mean as long as there is room.
    return bound_with_answers(prompt, None if most is None or most <= 0 else min(most, MAX_TOKENS), 1)


def _bound_answer(fields: dict[str, Raw], tokens: Raw) -> None:
    options = fields.get("options", ABSENT)
    known = {} if bytes(options) in (b"", b"null") else FIELDS.decode(options)
    fields["options"] = Raw(_encode({**known, "num_predict": tokens}))


def _read_usage(data: bytes, before: Usage | None) -> UsageReading | None:
    try:
        fields = _usage_fields.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if fields.prompt_eval_count is None and fields.eval_count is None:
        return UsageReading(before)
    return UsageReading(Usage(fields.prompt_eval_count or 0, fields.eval_count or 0))


def _unloads(path: bytes, body: bytes) -> bool:
    """Whether a call asks to let a model go: for no time, and without its question.

    Raises InvalidValue for a duration that is none. What else is wrong with a body the node says.
    """
    question = _UNLOADING.get(path)
    if question is None:
        return False
    try:
        fields = FIELDS.decode(body)
        keep_alive = _duration.decode(fields.get("keep_alive", b"null"))
        return is_unloading(keep_alive) and not msgspec.json.decode(fields.get(question, b"null"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


PROXY = ProxyDialect(
    peek=body_reader(_OllamaFields, _peek),
    bound=bound_reader(_OllamaBound, _bound),
    bound_answer=_bound_answer,
    marks=StreamMarks(
        ends=(b'"done":true', b'"done": true', b'"error":'),
        usual_end=None,
        empty=(b'"content":""', b'"response":""'),
        thought=b'"thinking":"',
        usage=(b'"eval_count"',),
    ),
    read_usage=_read_usage,
    unloads=_unloads,
)
