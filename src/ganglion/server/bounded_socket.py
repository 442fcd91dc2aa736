"""A WebSocket whose larger messages come in turns, as bodies do: a message is read once there is room for it.

A message that never ends would else be held for as long as its connection, on as many as a client opens.
"""

import asyncio
from typing import ClassVar, Final

from ganglion.core.errors import Overloaded
from ganglion.engines.turns import Turn, Turns
from ganglion.gateway.body_turns import SMALL_BYTES, WAIT_S, turns_for
from ganglion.server.connection import CuttableSocket

TRY_AGAIN_LATER: Final = 1013


class BoundedSocket(CuttableSocket):
    """One connection; which keys share room is judged by what they are, before anybody asks whose."""

    turns: ClassVar[Turns]
    max_bytes: ClassVar[int]
    _coming_bytes = 0
    _turn: Turn | None = None
    _waiting: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes in, and no more of a large message than there is room for."""
        self._coming_bytes += len(data)
        super().data_received(data)
        is_large = self._coming_bytes > SMALL_BYTES and self.handshake_initiated
        if is_large and self._turn is None and self._waiting is None and not self.transport.is_closing():
            self._make_room()

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        super().send_receive_event_to_app()
        self._coming_bytes = 0
        self._give_back()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self._give_back()
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        headers = dict(self.scope["headers"])
        key = headers.get(b"authorization") or headers.get(b"x-api-key")
        asker = str(self.client) if key is None else key.decode("latin-1")
        self._turn = self.turns.take(asker, self.max_bytes)
        if self._turn is None:
            self.transport.pause_reading()
            self._waiting = self.loop.create_task(self._wait(asker))

    async def _wait(self, asker: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                self._turn = await self.turns.enter(asker, self.max_bytes)
        except (TimeoutError, Overloaded):
            self.conn.send_close(TRY_AGAIN_LATER)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            return
        finally:
            self._waiting = None
        if not self.read_paused:
            self.transport.resume_reading()

    def _give_back(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None


def socket_class(max_bytes: int) -> type[BoundedSocket]:
    """The class of one server's connections, which share their room."""
    return type("ServersSocket", (BoundedSocket,), {"turns": turns_for(max_bytes), "max_bytes": max_bytes})
