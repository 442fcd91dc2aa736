"""The gate that all work passes: it counts work in flight, and lets none in once the server drains."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ganglion.core.errors import Overloaded, ShuttingDown


def shutting_down() -> ShuttingDown:
    """The error of work that comes while the server drains."""
    return ShuttingDown("The server is shutting down.", hint="Retry elsewhere or in a moment.")


class Gate:
    """Admits work until `drain`; `idle` returns when the last of it has ended. Only its methods change it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_flight = 0
        """How much work is inside now."""
        self.is_draining = False
        """Whether new work is refused for good."""
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count as work inside; raises ShuttingDown and Overloaded."""
        if self.is_draining:
            raise shutting_down()
        if self.in_flight >= self._limit:
            raise Overloaded(
                f"The server is already answering {self._limit} requests.",
                hint="Retry in a moment.",
                extras={"queue_depth": self.in_flight},
            )
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    def drain(self) -> None:
        """Refuse new work from now on."""
        self.is_draining = True

    async def idle(self) -> None:
        """Wait until no work is in flight."""
        await self._idle.wait()
