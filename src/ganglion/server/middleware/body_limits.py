"""Room for bodies that are still coming: a large one is read further only once there is room for all of it.

Law: what unfinished bodies hold is bounded over all tenants and for each of them, before anything is done
with them. A small body needs no room, and of one that waits for it not a byte is read beyond what its
connection holds anyway.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.core.errors import Overloaded
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore
from ganglion.gateway.proxy.body_budget import SMALL_BYTES, WAIT_S, body_budget
from ganglion.server.middleware.scope import header, tenant


class BodyMemoryLimit:
    """An app whose larger bodies come in turns."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self.turns = body_budget(max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size_bytes = self._announced(scope)
        if size_bytes <= SMALL_BYTES:
            await self._app(scope, receive, send)
            return
        body = _IncomingBody(receive, self.turns, tenant(scope), size_bytes)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.close()

    def _announced(self, scope: Scope) -> int:
        """How large a body may become; one that says nothing true may become as large as any."""
        if scope["type"] != "http":
            return 0
        length = header(scope, b"content-length")
        if length is not None and length.isdigit():
            return min(int(length[:20]), self._max_body_bytes)
        return self._max_body_bytes if header(scope, b"transfer-encoding") is not None else 0


class _IncomingBody:
    """One body on its way in."""

    def __init__(self, receive: Receive, turns: FairSemaphore, tenant: str, size_bytes: int) -> None:
        self._receive = receive
        self._turns = turns
        self._tenant = tenant
        self._size_bytes = size_bytes
        self._came_bytes = 0
        self._turn: FairPermit | None = None
        self._is_whole = False

    async def receive(self) -> Message:
        """The next of it, once there is room; raises Overloaded when there is none for too long."""
        if self._came_bytes > SMALL_BYTES // 2 and self._turn is None and not self._is_whole:
            self._turn = await self._room()
        message = await self._receive()
        self._came_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._is_whole = True
            self.close()
        return message

    def close(self) -> None:
        """Give the room back."""
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    async def _room(self) -> FairPermit:
        turn = self._turns.take(self._tenant, self._size_bytes)
        if turn is not None:
            return turn
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._turns.enter(self._tenant, self._size_bytes)
        except TimeoutError:
            raise Overloaded(
                "The server is reading as many large bodies as it may.", hint="Retry in a moment."
            ) from None
