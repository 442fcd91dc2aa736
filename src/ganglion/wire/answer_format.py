"""The answer format of each route that generates: how its calls are parsed and its answers written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ganglion.core.engine import ModelState
from ganglion.core.fold import Answer
from ganglion.core.request import Request
from ganglion.wire.frame import SERVER_SENT_EVENTS, Framing, Projection
from ganglion.wire.seal import HmacSeal

_Purpose = Literal["answer", "load", "unload"]
"""What a call is for: a wire may load and unload models by asking them nothing."""

_ReplyContext = TypeVar("_ReplyContext")
"""What a wire's projection and body must know of the call that they answer."""


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The facts of a request besides its body."""

    id: str
    created_s: float = 0.0
    fingerprint: str | None = None
    tenant: str = ""
    keep_markers: bool = False
    shows_thought: bool = False
    is_strict: bool = False
    request_id: str = ""
    seal: HmacSeal | None = field(default=None, repr=False)
    """None where nothing is sealed, as when only a prompt is read."""


@dataclass(frozen=True, slots=True)
class ParsedCall(Generic[_ReplyContext]):
    """A parsed body: its requests, the context of their answer, and the parts that were set aside."""

    requests: tuple[Request, ...]
    reply: _ReplyContext
    is_streamed: bool
    unknown_fields: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """What was asked for and is not done, though the answer is the same without it."""
    remarks: tuple[str, ...] = ()
    """What else a debug log may say of it."""
    purpose: _Purpose = "answer"
    context_tokens: int | None = None
    """The room that the client hopes for."""
    may_truncate: bool = False
    """Whether a prompt that is too long is rather cut than refused."""

    @property
    def request(self) -> Request:
        """The first of its requests, and on most wires the only one."""
        return self.requests[0]


@dataclass(frozen=True, slots=True)
class AnswerFormat(Generic[_ReplyContext]):
    """One route on which a model answers."""

    path: str
    id_prefix: str
    parse: Callable[[bytes, ParseContext], ParsedCall[_ReplyContext]]
    projection: Callable[[_ReplyContext, int], Projection]
    """What makes frames of the events of so many choices."""
    body: Callable[[Sequence[Answer], _ReplyContext], bytes]
    """The whole answer."""
    framing: Framing = SERVER_SENT_EVENTS
    is_any_type: bool = False
    """Whether clients never say that what they send is JSON."""
    at_once: int | None = None
    """How many of a call's requests run at the same time; None for all."""
    resolve_model: Callable[[str, Sequence[ModelState]], str] | None = None
    """The name as the engine knows it; None where clients write that."""
    empty_body: Callable[[_ReplyContext, Literal["load", "unload"]], bytes] | None = None
    """The answer to a call that only loads or unloads."""
