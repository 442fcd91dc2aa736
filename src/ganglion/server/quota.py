"""The quota of answers that the gateway's proxy cannot count: in the background, in WebSockets, with history.

In the background and in WebSockets nothing else sees the end of an answer. Every other answer is counted by
the proxy as it passes; but what a call continues stands in the store and not in its body, so that only here
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

_Settle = Callable[[Usage | None], None]
"""Is called once with what an answer took; None where nothing ran."""


def _no_settlement(usage: Usage | None) -> None:
    """Used where nobody counts the answer, or somebody else does."""


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """What a call may take of its key's quota."""

    settle: _Settle = _no_settlement
    answer_tokens: int | None = None
    """The longest answer to a call whose client did not bound it; None for any length."""


class QuotaMeter(Protocol):
    """Says what each key may still take."""

    async def admit(self, principal: Principal, request: Request) -> QuotaReservation:
        """Reserve what a call may take, whose prompt is whole; raises why it may not."""


class NoQuota:
    """A server that counts nobody's answers."""

    async def admit(self, principal: Principal, request: Request) -> QuotaReservation:
        """Nothing to reserve."""
        return QuotaReservation()


class QuotaSettlement:
    """Settles a reservation when it is left, by what the answers under it took."""

    def __init__(self, settle: _Settle = _no_settlement) -> None:
        self._settle = settle
        self.answers: Answers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle(None if self.answers is None else self.answers.usage())
