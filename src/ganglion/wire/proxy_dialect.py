"""The proxy's side of a wire: what to read out of a body, how a stream ends, and where usage stands.

Law: a body whose other fields are wrong still names its model: the node that gets it says what is wrong. All
that is looked for in a stream is bytes that are written once here, since every read of every stream looks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from ganglion.core.events import Usage
from ganglion.wire.decode import FIELDS
from ganglion.wire.proxy_usage import UsageReading, answer_texts, read_usage
from ganglion.wire.token_bound import ANSWER_FIELDS, TokenBound

PROMPT_PREFIX_BYTES = 256
"""Of a prompt that only grows: short enough to be there at the first turn already."""
ABSENT = Raw()
"""Instead of None, in whose union with it no value would be taken as it is."""

Part = bytes | str


class Peeked(Struct, gc=False):
    """The facts that a proxy reads out of a body; a struct, since one is made for each."""

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


class _Named(Struct):
    model: str | None = None


class _Role(Struct):
    role: str = ""


class _StreamOptions(Struct):
    include_usage: bool | None = None


class PeekedFields(_Named):
    """What OpenAI's wires have in common."""

    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def asks_usage(self) -> bool:
        """Whether the client wants the usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_role = msgspec.json.Decoder(_Role)
_encode = msgspec.json.encode

_T = TypeVar("_T", bound=Struct)


def body_reader(shape: type[_T], peek: Callable[[_T], Peeked]) -> Callable[[bytes], Peeked]:
    """What reads bodies of this shape; raises msgspec.DecodeError."""
    decode = msgspec.json.Decoder(shape).decode
    return lambda body: peek(decode(body))


def opening(messages: list[Raw] | None) -> tuple[bytes, ...]:
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


def bound_answer(fields: dict[str, Raw], tokens: Raw, *, name: str = "max_tokens") -> None:
    """Say how long an answer may be, under one name alone: servers that know several heed any of them."""
    for other in ANSWER_FIELDS:
        fields.pop(other, None)
    fields[name] = tokens


def ask_usage(fields: dict[str, Raw]) -> None:
    """Ask for the chunk that says what a stream of OpenAI's came to."""
    options = fields.get("stream_options")
    try:
        known = {} if options is None else FIELDS.decode(options)
    except msgspec.DecodeError:
        known = {}
    fields["stream_options"] = Raw(_encode({**known, "include_usage": Raw(b"true")}))


@dataclass(frozen=True, slots=True)
class StreamMarks:
    """What stands in the bytes of a stream; the defaults are OpenAI's."""

    ends: tuple[bytes, ...] = (b"data: [DONE]", b"data:[DONE]")
    """Beginnings of the line that is the end, or what its last line holds where a line is an event."""
    usual_end: bytes | None = b"\ndata: [DONE]\n\n"
    """How nearly every stream ends: looked at before anything is looked for."""
    text: bytes | None = None
    """In each event that says something, where a quote inside what is said stands behind a backslash; None
    where all events do but the first, which may name a role, and the last two."""
    empty: tuple[bytes, ...] = ()
    """In events that say nothing."""
    thought: bytes | None = None
    """In events that are empty otherwise, and say something."""
    usage: tuple[bytes, ...] = (b'"usage":{', b'"usage": {')
    """In events that say what the answer came to."""


@dataclass(frozen=True, slots=True)
class ProxyDialect:
    """One wire as a proxy knows it; the defaults are those of a wire that answers whole."""

    peek: Callable[[bytes], Peeked] = body_reader(_Named, lambda body: Peeked(body.model or ""))
    """Reads a body; raises msgspec.ValidationError for other fields than the model, too."""
    bound: Callable[[bytes], TokenBound] = lambda body: TokenBound(len(body))
    """What a body can take at most; raises msgspec.ValidationError where that cannot be read."""
    bound_answer: Callable[[dict[str, Raw], Raw], None] = bound_answer
    """Writes into the fields of a body how many tokens each answer may have."""
    ask_usage: Callable[[dict[str, Raw]], None] | None = None
    """Writes into them that the stream is to say what it came to; None where it does so unasked."""
    marks: StreamMarks = StreamMarks()
    read_usage: Callable[[bytes, Usage | None], UsageReading | None] = read_usage
    """What a body or an event came to, after what was told before; None where it is not JSON of this wire."""
    answer_texts: Callable[[bytes], Iterable[str | None]] = answer_texts
    """All that was said in a whole answer; raises msgspec.DecodeError."""
    answer_tokens: Mapping[str, int] = field(default_factory=dict)
    """What an answer is at most, by path, where its client has no say in that."""
    unloads: Callable[[bytes, bytes], bool] | None = None
    """Whether a path and a body unload a model, which takes an admin; None where none of them does."""


PLAIN = ProxyDialect()
"""A wire of which nothing is known but that bodies name their model."""
