"""What the gateway must know of a request's body, read without reading the rest of it.

Law: a body whose other fields are wrong still names its model: the node that gets it says what is wrong.
"""

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Raw, Struct

from ganglion.core.errors import InvalidJson
from ganglion.wire.dialect import Wire
from ganglion.wire.ollama.options import is_unloading

_PROMPT_PREFIX_BYTES = 256
"""Of a prompt that only grows: short enough to be there at the first turn already."""

Part = bytes | str
ANSWER_BOUNDS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
    "num_predict",
)
"""Names under which servers are told how long an answer may be."""
_encode = msgspec.json.encode


class Peeked(Struct, gc=False):
    """What a body says; a struct, since one is made for each."""

    model: str
    is_stream: bool = False
    asks_usage: bool = False
    """Whether the client wants the usage chunk of a stream for itself."""
    parts: tuple[Part, ...] = ()
    """What names its conversation; empty for none."""
    is_background: bool = False
    """Whether it is to run on after the client has its answer."""
    is_filled_in: bool = False
    """Whether the model is the only one that is loaded, and not the body's own word."""


_ABSENT = Raw()
"""Instead of None, in whose union with it no value would be taken as it is."""


class _Options(Struct):
    include_usage: bool | None = None


class _Metadata(Struct):
    user_id: str | None = None


class _Role(Struct):
    role: str = ""


class _Chat(Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _Options | None = None
    messages: list[Raw] | None = None
    prompt_cache_key: str | None = None


class _Completions(Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _Options | None = None
    prompt: Raw = _ABSENT


class _Messages(Struct):
    model: str | None = None
    stream: bool | None = None
    system: Raw = _ABSENT
    messages: list[Raw] | None = None
    metadata: _Metadata | None = None


class _Responses(Struct):
    model: str | None = None
    stream: bool | None = None
    instructions: Raw = _ABSENT
    input: str | list[Raw] | None = None
    previous_response_id: str | None = None
    conversation: Raw = _ABSENT
    prompt_cache_key: str | None = None
    background: bool | None = None


class _Ollama(Struct):
    model: str | None = None
    stream: bool | None = None
    messages: list[Raw] | None = None
    system: Raw = _ABSENT
    prompt: str | None = None


class _Named(Struct):
    model: str | None = None


_role = msgspec.json.Decoder(_Role)


def _opening(messages: list[Raw] | None) -> tuple[bytes, ...]:
    """The first turn: what a system says, and what is asked under it."""
    if not messages:
        return ()
    first = bytes(messages[0])
    if len(messages) == 1:
        return (first,)
    try:
        is_prelude = _role.decode(first).role in ("system", "developer")
    except msgspec.DecodeError:
        is_prelude = False
    return (first, bytes(messages[1])) if is_prelude else (first,)


def _chat(asked: _Chat) -> Peeked:
    return Peeked(
        asked.model or "",
        bool(asked.stream),
        asked.stream_options is not None and bool(asked.stream_options.include_usage),
        (asked.prompt_cache_key,) if asked.prompt_cache_key else _opening(asked.messages),
    )


def _completions(asked: _Completions) -> Peeked:
    return Peeked(
        asked.model or "",
        bool(asked.stream),
        asked.stream_options is not None and bool(asked.stream_options.include_usage),
        (bytes(asked.prompt)[:_PROMPT_PREFIX_BYTES],) if asked.prompt else (),
    )


def _messages(asked: _Messages) -> Peeked:
    user = "" if asked.metadata is None else asked.metadata.user_id or ""
    # Claude Code names its session here, and moves its cache marks from message to message.
    if "session" in user:
        parts: tuple[Part, ...] = (user,)
    else:
        parts = (bytes(asked.system), *_opening(asked.messages))
    return Peeked(asked.model or "", bool(asked.stream), False, parts)


def _responses(asked: _Responses) -> Peeked:
    return Peeked(
        asked.model or "",
        bool(asked.stream),
        False,
        _responses_parts(asked),
        bool(asked.background),
    )


def _responses_parts(asked: _Responses) -> tuple[Part, ...]:
    if asked.prompt_cache_key:
        return (asked.prompt_cache_key,)
    if asked.conversation:
        return (bytes(asked.conversation),)
    # Each turn continues another response: only the desk knows where they all began.
    if asked.previous_response_id is not None:
        return ()
    opening = (asked.input,) if isinstance(asked.input, str) else _opening(asked.input)
    return (bytes(asked.instructions), *opening)


def _ollama(asked: _Ollama) -> Peeked:
    parts: tuple[Part, ...] = _opening(asked.messages)
    if asked.prompt is not None:
        parts = (bytes(asked.system), asked.prompt[:_PROMPT_PREFIX_BYTES])
    return Peeked(asked.model or "", asked.stream is not False, False, parts)


def _named(asked: _Named) -> Peeked:
    return Peeked(asked.model or "")


T = TypeVar("T", bound=Struct)


def _reader(kind: type[T], project: Callable[[T], Peeked]) -> Callable[[bytes], Peeked]:
    decode = msgspec.json.Decoder(kind).decode
    return lambda body: project(decode(body))


_READERS: dict[Wire, Callable[[bytes], Peeked]] = {
    "chat": _reader(_Chat, _chat),
    "completions": _reader(_Completions, _completions),
    "messages": _reader(_Messages, _messages),
    "responses": _reader(_Responses, _responses),
    "ollama": _reader(_Ollama, _ollama),
}
_read_name = _reader(_Named, _named)
_fields = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)
_duration = msgspec.json.Decoder(float | str | None)


def peek(wire: Wire, body: bytes) -> Peeked:
    """What a body asks for; the model may be missing. Raises InvalidJson."""
    try:
        return _READERS.get(wire, _read_name)(body)
    except msgspec.ValidationError:
        return Peeked(_model_of(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"The body is not JSON: {error}.") from None


def asks_to_unload(body: bytes, question: str) -> bool:
    """Whether a body of Ollama's wire asks to let a model go: for no time, and without its question.

    Raises InvalidValue for a duration that is none. What else is wrong with a body the node says.
    """
    try:
        fields = _fields.decode(body)
        keep_alive = _duration.decode(fields.get("keep_alive", b"null"))
        return is_unloading(keep_alive) and not msgspec.json.decode(fields.get(question, b"null"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def peek_query(query: bytes) -> Peeked:
    """What a query asks for."""
    return Peeked(dict(_pairs(query)).get("model", ""))


def _model_of(body: bytes) -> str:
    try:
        return _text.decode(_fields.decode(body).get("model", b'""'))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        return []


def with_fields(
    body: bytes, *, model: str | None, asks_usage: bool, answer: tuple[Wire, int] | None = None
) -> bytes:
    """The body with its model named as a node names it, with usage asked for, and with each answer bounded as
    its wire says it; all else as it was."""
    try:
        fields = _fields.decode(body)
    except msgspec.DecodeError:
        return body  # an array, say: the node refuses it
    if model is not None:
        fields["model"] = Raw(_encode(model))
    if asks_usage:
        fields["stream_options"] = Raw(_encode(_asking(fields.get("stream_options"))))
    if answer is not None:
        _bound_answer(fields, *answer)
    return _encode(fields)


def _bound_answer(fields: dict[str, Raw], wire: Wire, tokens: int) -> None:
    """Say how long an answer may be, under one name alone: servers that know several heed any of them."""
    most = Raw(_encode(tokens))
    if wire == "ollama":
        options = fields.get("options", _ABSENT)
        known = {} if bytes(options) in (b"", b"null") else _fields.decode(options)
        fields["options"] = Raw(_encode({**known, "num_predict": most}))
        return
    for name in ANSWER_BOUNDS:
        fields.pop(name, None)
    fields["max_output_tokens" if wire == "responses" else "max_tokens"] = most


def _asking(options: Raw | None) -> dict[str, Raw]:
    try:
        known = {} if options is None else _fields.decode(options)
    except msgspec.DecodeError:
        known = {}
    return {**known, "include_usage": Raw(b"true")}


def with_model_query(query: bytes, model: str) -> bytes:
    """The query with its model named as a node names it."""
    pairs = [(name, value) for name, value in _pairs(query) if name != "model"]
    return urlencode([*pairs, ("model", model)]).encode()
