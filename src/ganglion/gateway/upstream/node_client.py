"""The HTTP client for calls to nodes that are awaited: probes, loads, and answers read as events.

Law: leaving a stream early cuts its connection, which cancels the work there.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ganglion.core.errors import DeadlineExceeded, UpstreamUnavailable
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.node_headers import header_lines, key_headers
from ganglion.gateway.upstream.pool import ConnectionPools, NodeUnreached, StaleConnection
from ganglion.gateway.upstream.upstream_connection import Headers, UpstreamConnection

_MAX_ANSWER_BYTES = 64 * 2**20
"""The largest answer that is read whole."""
_SAFE = ("GET", "HEAD")
_HIGH_BYTES = 2**20
"""So much of a stream may wait unread before reading is paused."""


@dataclass(frozen=True, slots=True)
class NodeResponse:
    """A whole response."""

    status: int
    headers: Headers
    body: bytes


def _encode_node_request(
    spec: NodeSpec,
    authority: str,
    *,
    method: str,
    target: str,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
) -> bytes:
    """A whole request, with the node's own key and nobody else's."""
    first = f"{method} {target} HTTP/1.1\r\nhost: {authority}\r\n".encode()
    has_length = body or method not in ("GET", "HEAD", "DELETE")
    length = b"content-length: %d\r\n" % len(body) if has_length else b""
    return b"".join((first, header_lines(key_headers(spec)), header_lines(headers), length, b"\r\n", body))


@dataclass(slots=True)
class NodeResponseStream:
    """A response as it comes: the sink of its connection, for one reader."""

    connection: UpstreamConnection
    status: int = 0
    headers: Headers = field(default_factory=list)
    _parts: list[bytes] = field(default_factory=list)
    _size_bytes: int = 0
    is_over: bool = False
    """Whether all of it has come."""
    _is_paused: bool = False
    _error: UpstreamUnavailable | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._changed.set()

    def body(self, data: bytes, *, is_end: bool) -> None:
        if data:
            self._parts.append(data)
            self._size_bytes += len(data)
        self.is_over = is_end
        if self._size_bytes > _HIGH_BYTES and not is_end and not self._is_paused:
            self._is_paused = True
            self.connection.pause()
        self._changed.set()

    def lost(self, error: Exception | None) -> None:
        why = f": {error}" if error is not None and str(error) else ""
        kind = StaleConnection if self.connection.is_stale else UpstreamUnavailable
        self._error = kind(f"The node broke off its answer{why}.")
        self._changed.set()

    async def begun(self) -> None:
        """Wait for the head; raises UpstreamUnavailable."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """Everything that came since, at least one byte; empty at the end. Raises UpstreamUnavailable."""
        while not self._parts:
            if self.is_over:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size_bytes = [], 0
        if self._is_paused:
            self._is_paused = False
            self.connection.resume()
        return data

    async def whole(self, max_bytes: int = _MAX_ANSWER_BYTES) -> bytes:
        """The rest of the body; raises UpstreamUnavailable where it is larger."""
        parts = []
        size_bytes = 0
        while data := await self.read():
            parts.append(data)
            size_bytes += len(data)
            if size_bytes > max_bytes:
                raise UpstreamUnavailable(f"The node answered with more than {max_bytes} bytes.")
        return b"".join(parts)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class NodeClient:
    """Makes every call to a node that is awaited."""

    def __init__(self, pools: ConnectionPools) -> None:
        self._pools = pools

    @asynccontextmanager
    async def stream(
        self,
        spec: NodeSpec,
        method: str,
        path: str,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
    ) -> AsyncGenerator[NodeResponseStream, None]:
        """A response whose head has come; raises UpstreamUnavailable, NodeUnreached if nothing was sent."""
        pool = self._pools.of(spec)
        data = _encode_node_request(
            spec,
            pool.address.authority,
            method=method,
            target=pool.address.prefix + path,
            headers=headers,
            body=body,
        )
        kept = pool.take()
        response = NodeResponseStream(kept or await pool.connect())
        try:
            response.connection.request(data, response)
            try:
                await response.begun()
            except UpstreamUnavailable as lost:
                if kept is None or method not in _SAFE:
                    raise
                # A kept connection may have been closed over there while the request was on its way. What
                # is work may have begun all the same, and whether it is asked for again is for `retry`.
                try:
                    response = NodeResponseStream(await pool.connect())
                except NodeUnreached:
                    raise lost from None  # it was sent, and perhaps it is what ended the node
                response.connection.request(data, response)
                await response.begun()
            yield response
        finally:
            if not response.is_over:
                response.connection.abort()

    async def call(
        self,
        spec: NodeSpec,
        method: str,
        path: str,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        timeout_s: float,
        max_bytes: int = _MAX_ANSWER_BYTES,
    ) -> NodeResponse:
        """A whole response; raises UpstreamUnavailable, DeadlineExceeded."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.stream(spec, method, path, headers=headers, body=body) as response,
            ):
                return NodeResponse(response.status, response.headers, await response.whole(max_bytes))
        except TimeoutError:
            raise DeadlineExceeded("node", timeout_s) from None
