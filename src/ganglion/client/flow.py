"""Flows: the client's calls as generators that yield effects and receive replies, without any I/O.

A flow yields effects. Its driver, blocking or in an event loop, performs each and sends the reply in, or
throws the GanglionError that came instead. Closing a flow abandons it: it commits what its caller has seen.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from ganglion.client.errors import Unreachable
from ganglion.client.rpcs import Q, R, Rpc
from ganglion.client.values import Event
from ganglion.core.errors import GanglionError, SessionBusy

_T = TypeVar("_T")

_RETRIES: Final = 3
_FIRST_PAUSE_S: Final = 0.1
_PAUSE_GROWTH: Final = 4
_LONGEST_PAUSE_S: Final = 30.0
_BUSY_PAUSES_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_UNREACHED_PAUSES_S: Final = (0.1, 0.3, 0.5)
"""Together longer than gRPC reports a node as away that is back (`max_reconnect_backoff_ms`)."""


@dataclass(frozen=True, slots=True)
class UnaryCall:
    """One message there, one back: the reply."""

    rpc: Rpc[Any, Any]
    request: Message


@dataclass(frozen=True, slots=True)
class UploadCall:
    """Several messages there, one back: the reply."""

    rpc: Rpc[Any, Any]
    requests: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class StreamCall:
    """Opens the flow's one stream; replies nothing."""

    rpc: Rpc[Any, Any]
    request: Message


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """The stream's next message, or None at its end."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Emits an event to the caller."""

    event: Event


@dataclass(frozen=True, slots=True)
class Gather:
    """Runs other flows together and drops their events; replies their results, in order."""

    flows: "tuple[Flow[Any], ...]"


Effect = UnaryCall | UploadCall | StreamCall | ReadMessage | Sleep | Emit | Gather
EffectReply = Message | tuple[Any, ...] | None
Flow = Generator[Effect, EffectReply, _T]
"""Emits events, then returns an answer."""


def call_rpc(rpc: Rpc[Q, R], request: Q, *, patience_s: float = 0.0) -> Flow[R]:
    """Call; where that is safe and the node is away, again after a while.

    All pauses together are no longer than `patience_s`. What is not safe is called again where nothing of
    it was sent.
    """
    if not rpc.is_safe:
        return _reply(rpc, (yield from _retry_unreached(lambda: _call_once(rpc, request))))
    waited_s = 0.0
    for attempt in range(_RETRIES + 1):
        try:
            return _reply(rpc, (yield UnaryCall(rpc, request)))
        except GanglionError as error:
            pause_s = _pause(error, attempt)
            waited_s += pause_s
            if error.grpc != "UNAVAILABLE" or attempt == _RETRIES or waited_s > patience_s:
                raise
        yield Sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def upload_messages(rpc: Rpc[Q, R], requests: tuple[Q, ...]) -> Flow[R]:
    """Send several messages for one reply."""
    return _reply(rpc, (yield UploadCall(rpc, requests)))


def gather(flows: "Iterable[Flow[_T]]") -> "Flow[tuple[_T, ...]]":
    """Run flows together; their results. Where one raises, so does this, once all are over."""
    answers = yield Gather(tuple(flows))
    assert isinstance(answers, tuple)
    return answers


def _retry_unreached(attempt: Callable[[], Flow[_T]]) -> Flow[_T]:
    """Attempt; where the node did not listen, again in a moment: one that restarts is soon back."""
    for pause_s in _UNREACHED_PAUSES_S:
        try:
            return (yield from attempt())
        except Unreachable:
            yield Sleep(pause_s)
    return (yield from attempt())


def retry_busy(attempt: Callable[[], Flow[_T]], *, is_ours: bool) -> Flow[_T]:
    """Attempt; where we have just cancelled a call of the session, again once the node has noticed.

    Safe for every rpc: a busy session refuses before anything is changed.
    """
    for pause_s in _BUSY_PAUSES_S if is_ours else ():
        try:
            return (yield from attempt())
        except SessionBusy:
            yield Sleep(pause_s)
    return (yield from attempt())


def open_stream(rpc: Rpc[Q, R], request: Q) -> Flow[R | None]:
    """Open the stream and read its first message; None where it has none."""
    return (yield from _retry_unreached(lambda: _open_and_read(rpc, request)))


def read_message(rpc: Rpc[Q, R]) -> Flow[R | None]:
    """The stream's next message; None at its end."""
    reply = yield ReadMessage()
    return None if reply is None else _reply(rpc, reply)


def _open_and_read(rpc: Rpc[Q, R], request: Q) -> Flow[R | None]:
    yield StreamCall(rpc, request)
    return (yield from read_message(rpc))


def _call_once(rpc: Rpc[Q, R], request: Q) -> Flow[EffectReply]:
    return (yield UnaryCall(rpc, request))


def _reply(rpc: Rpc[Q, R], reply: EffectReply) -> R:
    assert isinstance(reply, rpc.reply)
    return reply


def _pause(error: GanglionError, attempt: int) -> float:
    grown: float = _FIRST_PAUSE_S * _PAUSE_GROWTH**attempt
    return min(_LONGEST_PAUSE_S, max(grown, float(error.retry_after_s or 0)))
