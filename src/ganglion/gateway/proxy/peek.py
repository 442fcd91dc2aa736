"""Reading and changing a few fields of a request's body, without reading the rest of it."""

from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Raw

from ganglion.core.errors import InvalidJson
from ganglion.wire.decode import FIELDS
from ganglion.wire.proxy_dialect import Peeked, ProxyDialect

_text = msgspec.json.Decoder(str)
_encode = msgspec.json.encode


def peek(dialect: ProxyDialect, body: bytes) -> Peeked:
    """What a body asks for; the model may be missing. Raises InvalidJson."""
    try:
        return dialect.peek(body)
    except msgspec.ValidationError:
        return Peeked(_model_of(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"The body is not JSON: {error}.") from None


def peek_query(query: bytes) -> Peeked:
    """What a query asks for."""
    return Peeked(dict(_pairs(query)).get("model", ""))


def _model_of(body: bytes) -> str:
    try:
        return _text.decode(FIELDS.decode(body).get("model", b'""'))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        return []


def with_fields(
    body: bytes,
    dialect: ProxyDialect,
    *,
    model: str | None = None,
    asks_usage: bool = False,
    answer_tokens: int | None = None,
) -> bytes:
    """The body with its model named as a node names it, with usage asked for, and with each answer bounded as
    its wire says it; all else as it was."""
    try:
        fields = FIELDS.decode(body)
    except msgspec.DecodeError:
        return body  # an array, say: the node refuses it
    if model is not None:
        fields["model"] = Raw(_encode(model))
    if asks_usage and dialect.ask_usage is not None:
        dialect.ask_usage(fields)
    if answer_tokens is not None:
        dialect.bound_answer(fields, Raw(_encode(answer_tokens)))
    return _encode(fields)


def with_model_query(query: bytes, model: str) -> bytes:
    """The query with its model named as a node names it."""
    pairs = [(name, value) for name, value in _pairs(query) if name != "model"]
    return urlencode([*pairs, ("model", model)]).encode()
