"""One attempt of a request on one node: its answer is held while the request could still go elsewhere.

Law: a node's count in the fleet is raised when the attempt begins and lowered once, however it ends.
"""

from typing import TYPE_CHECKING

from ganglion.core.errors import UpstreamUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.proxy.streams import (
    ForeignEventStream,
    JsonLineStream,
    NodeEventStream,
    OpaqueBody,
    StreamFilter,
)
from ganglion.gateway.upstream.upstream_connection import Headers, UpstreamConnection

if TYPE_CHECKING:
    from ganglion.gateway.proxy.exchange import ProxyExchange

_MAX_HELD_BYTES = 256 * 2**10
"""An answer up to this size is passed on when it is whole: a node that dies in it has given nothing out."""


class NodeAttempt:
    """Reads one node's answer for one request; the fleet and the connection call it.

    Of what it calls of its exchange `whole`, `streamed` or `lost` comes last, `streams` before `streamed`.
    """

    __slots__ = (
        "_exchange",
        "_fleet",
        "_is_alone",
        "_is_counted",
        "_parts",
        "_size_bytes",
        "began_after",
        "connection",
        "headers",
        "is_control_app",
        "is_sent",
        "is_tunnel",
        "received_s",
        "spec",
        "status",
        "stream",
    )

    def __init__(
        self,
        exchange: "ProxyExchange",
        spec: NodeSpec,
        fleet: Fleet,
        *,
        is_control_app: bool,
        is_alone: bool = False,
    ) -> None:
        self._exchange = exchange
        self._fleet = fleet
        self.spec = spec
        self.is_control_app = is_control_app
        self.connection: UpstreamConnection | None = None
        self.status = 0
        self.headers: Headers = []
        self.stream: StreamFilter | None = None
        self.received_s = 0.0
        """When something last came from it, on the proxy's coarse clock."""
        self.is_sent = False
        self.is_tunnel = False
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._is_counted = not is_control_app
        self._is_alone = is_alone
        self.began_after = fleet.losses
        """How many requests had been lost with their nodes when it was put to this one."""
        if self._is_counted:
            fleet.count_in(spec.name, self)
        if is_alone:
            fleet.reserve(spec.name)

    def send(self, connection: UpstreamConnection, data: bytes, now_s: float) -> None:
        """Put the request to the node."""
        self.connection = connection
        self.received_s = now_s
        self.is_sent = True
        connection.request(data, self)

    def release(self) -> None:
        """End the attempt; the exchange is not called again."""
        if self._is_counted:
            self._is_counted = False
            self._fleet.count_out(self.spec.name, self)
        if self._is_alone:
            self._is_alone = False
            self._fleet.free(self.spec.name)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()

    @property
    def last_heard_s(self) -> float:
        """When the fleet last heard of the node through this attempt; 0 before its first byte."""
        return self.received_s if self.status else 0.0

    def withdraw(self) -> None:
        """The fleet no longer waits for the node."""
        if not self._is_counted:
            return
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()
        self._exchange.withdrawn(self)

    def head(self, status: int, headers: Headers) -> None:
        """The head of the answer is there."""
        self.status, self.headers = status, headers
        self._exchange.received(self)
        if status == 101:
            self.is_tunnel = True
            self._exchange.switched(self)
            return
        named = dict(headers)
        if status == 200:
            self.stream = self._stream_of(named)
        if self.stream is None and int(named.get(b"content-length", 0)) > _MAX_HELD_BYTES:
            self.stream = OpaqueBody(self._exchange.dialect)

    def _stream_of(self, named: dict[bytes, bytes]) -> StreamFilter | None:
        if named.get(b"content-encoding", b"identity") != b"identity":
            return OpaqueBody(self._exchange.dialect)
        kind = named.get(b"content-type", b"")
        if kind == b"application/json":
            return None
        kind = kind.partition(b";")[0].strip().lower()
        if kind == b"text/event-stream":
            if self.is_control_app or self.spec.kind == "ganglion":
                return NodeEventStream(self._exchange.dialect.marks, is_control_app=self.is_control_app)
            return ForeignEventStream(self._exchange.dialect, takes_usage=self._exchange.takes_usage)
        if kind == b"application/x-ndjson":
            return JsonLineStream(self._exchange.dialect, is_control_app=self.is_control_app)
        return None

    def body(self, data: bytes, *, is_end: bool) -> None:
        """More of the body is there, or its end."""
        if is_end:
            self.connection = None  # it is free, and may be another's by now
        else:
            self._exchange.received(self)
        if self.stream is None:
            self._hold(data, is_end=is_end)
            return
        try:
            data = self.stream.feed(data)
        except UpstreamUnavailable as error:
            self._exchange.lost(self, error)
            return
        if is_end:
            self._exchange.streamed(self, data)
        elif data:
            self._exchange.streams(self, data)

    def _hold(self, data: bytes, *, is_end: bool) -> None:
        if self.is_tunnel:
            self._exchange.streams(self, data)
            return
        if is_end:
            self._exchange.whole(self, b"".join((*self._parts, data)) if self._parts else data)
            return
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > _MAX_HELD_BYTES:
            held, self._parts = b"".join(self._parts), []
            self.stream = OpaqueBody(self._exchange.dialect)
            self._exchange.streams(self, self.stream.feed(held))

    def lost(self, error: Exception | None) -> None:
        """The connection ended before the answer did."""
        connection, self.connection = self.connection, None
        why = f": {error}" if error is not None and str(error) else ""
        lost = UpstreamUnavailable(
            f"The node {self.spec.name!r} broke off{why}.", extras={"node": self.spec.name}
        )
        self._exchange.lost(self, lost, is_stale=connection is not None and connection.is_stale)
