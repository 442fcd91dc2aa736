"""What answers take of somebody's limits, where nobody hears their end: in the background and inside sockets.

Every other answer is counted by the gateway's front as it passes.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from ganglion.core.events import Usage
from ganglion.server.answers import Answers
from ganglion.server.visit import Visit

Settle = Callable[[Usage | None], None]
"""Is told once what an answer came to; None where nothing ran."""


class Meter(Protocol):
    """Knows what each key may still take."""

    async def admit(self, visit: Visit, model: str, body: bytes) -> Settle:
        """Reserve what a call may take; raises why it may not."""
        ...


class Unmetered:
    """For a server on which nobody's answers are counted."""

    async def admit(self, visit: Visit, model: str, body: bytes) -> Settle:
        """Nothing to reserve."""
        return lambda usage: None


class Tab:
    """Settles what was reserved when it is left, by what the answers under it came to."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self.answers: Answers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle(None if self.answers is None else self.answers.usage())
