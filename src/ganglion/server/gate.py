"""The gate that work passes: counted while it is inside, and shut once the server is leaving."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ganglion.core.errors import Overloaded, ShuttingDown


def shutting_down() -> ShuttingDown:
    """Why no more work is let in."""
    return ShuttingDown("The server is shutting down.", hint="Retry elsewhere or in a moment.")


class Gate:
    """Lets work in until `drain`, and says when the last of it is out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """How much work is inside now."""
        return self._in_flight

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused for good."""
        return self._is_draining

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Hold a place inside, or raise why there is none."""
        if self._is_draining:
            raise shutting_down()
        if self._in_flight >= self._limit:
            raise Overloaded(
                f"The server is already answering {self._limit} requests.",
                hint="Retry in a moment.",
                extras={"queue_depth": self._in_flight},
            )
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    def drain(self) -> None:
        """Refuse new work from now on."""
        self._is_draining = True

    async def idle(self) -> None:
        """Wait until nothing is inside."""
        await self._idle.wait()
