"""What answers take of somebody's limits, where the gateway's front cannot know it.

In the background and inside sockets nobody else hears the end of an answer. Every other answer is counted by
the front as it passes; but what a call continues stands in the store and not in its body, so that only here
is known how long its prompt can be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from ganglion.core.events import Usage
from ganglion.core.request import Request
from ganglion.server.answers import Answers
from ganglion.server.middleware.principal import Principal

Settle = Callable[[Usage | None], None]
"""Is told once what an answer came to; None where nothing ran."""


def _no_settlement(usage: Usage | None) -> None:
    """Nobody counts it, or somebody else does."""


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """What a call got of its key's limits."""

    settle: Settle = _no_settlement
    answer_tokens: int | None = None
    """How long an answer may be that its client did not bound; None for as long as it likes."""


class QuotaMeter(Protocol):
    """Knows what each key may still take."""

    async def admit(self, visit: Principal, request: Request) -> QuotaReservation:
        """Reserve what a call may take, whose prompt is whole; raises why it may not."""
        ...


class NoQuota:
    """For a server on which nobody's answers are counted."""

    async def admit(self, visit: Principal, request: Request) -> QuotaReservation:
        """Nothing to reserve."""
        return QuotaReservation()


class QuotaSettlement:
    """Settles what was reserved when it is left, by what the answers under it came to."""

    def __init__(self, reserved: QuotaReservation) -> None:
        self._settle = reserved.settle
        self.answer_tokens = reserved.answer_tokens
        self.answers: Answers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle(None if self.answers is None else self.answers.usage())
