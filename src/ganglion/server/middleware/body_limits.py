"""Memory for request bodies on their way in: a large one is read further once there is room for all of it.

Law: what unfinished bodies hold is bounded over all tenants and for each of them, before anything is done
with them. A small body needs no room, and of one that waits for it not a byte is read beyond what its
connection holds anyway.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore
from ganglion.gateway.proxy.body_budget import SMALL_BYTES, body_budget, wait_for_room
from ganglion.server.middleware.scope import header, principal


class BodyMemoryLimit:
    """An app whose larger bodies wait for memory."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self.turns = body_budget(max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size_bytes = self._size_of(scope)
        if size_bytes <= SMALL_BYTES:
            await self._app(scope, receive, send)
            return
        body = _IncomingBody(receive, self.turns, principal(scope).tenant, size_bytes)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.close()

    def _size_of(self, scope: Scope) -> int:
        """How large a body may become; one that does not say may become as large as any."""
        if scope["type"] != "http":
            return 0
        length = header(scope, b"content-length")
        if length is not None and length.isdigit():
            return min(int(length[:20]), self._max_body_bytes)
        return self._max_body_bytes if header(scope, b"transfer-encoding") is not None else 0


class _IncomingBody:
    """One large body on its way in."""

    def __init__(self, receive: Receive, turns: FairSemaphore, tenant: str, size_bytes: int) -> None:
        self._receive = receive
        self._turns = turns
        self._tenant = tenant
        self._size_bytes = size_bytes
        self._received_bytes = 0
        self._turn: FairPermit | None = None
        self._is_whole = False

    async def receive(self) -> Message:
        """The next message, once there is room for the body; raises Overloaded where that takes too long."""
        if self._received_bytes > SMALL_BYTES // 2 and self._turn is None and not self._is_whole:
            self._turn = self._turns.take(self._tenant, self._size_bytes) or await wait_for_room(
                self._turns, self._tenant, self._size_bytes
            )
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._is_whole = True
            self.close()
        return message

    def close(self) -> None:
        """Give the room back."""
        if self._turn is not None:
            self._turn.close()
            self._turn = None
