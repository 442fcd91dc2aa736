"""Room for messages that are still coming: how many may be on their way in at once.

Law: gRPC takes in as much of a message as may come, of every call that waits for one, and does not say how
much that is. So few are waited for at a time. A client sends its message together with its call, and has it
read in a moment; one that does not is set apart, where there is room for a few, and is refused where not.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ganglion.core.errors import DeadlineExceeded, Overloaded
from ganglion.core.fair_queue import FairQueue
from ganglion.engines.turns import Turn, Turns

PROMPT: Final = 8
PROMPT_EACH: Final = 4
"""Messages that are read at once, and of one tenant: with the slow ones, 48 MiB of the largest."""
SLOW: Final = 4
SLOW_EACH: Final = 3
MOMENT_S: Final = 2.0
"""After which a message that has not come is a slow one."""
WAITING: Final = 8192
WAITING_EACH: Final = 4096
"""Calls whose message is not asked for yet, and of one tenant."""


class MessageRoom:
    """Lets calls wait for their messages, few at a time."""

    def __init__(self) -> None:
        self.prompt = Turns(
            PROMPT, PROMPT_EACH, FairQueue(most=WAITING, most_each=WAITING_EACH, of="messages")
        )
        self.slow = Turns(SLOW, SLOW_EACH, FairQueue(most=0, most_each=0, of="messages"))

    @asynccontextmanager
    async def reading(self, tenant: str, limit_s: float) -> AsyncIterator[None]:
        """Hold room while a message is read and decoded.

        Raises DeadlineExceeded where it takes too long, and Overloaded where it is slow and too many are.
        """
        held = _Held(self.slow, self.prompt.take(tenant) or await self.prompt.enter(tenant))
        try:
            async with asyncio.timeout(limit_s) as limit:
                held.watch(limit)
                yield
        except TimeoutError:
            if held.is_refused:
                raise Overloaded("Too many messages are slow to come.", hint="Retry in a moment.") from None
            raise DeadlineExceeded("message", limit_s) from None
        finally:
            held.close()


class _Held:
    """The room that one message has: first among the prompt ones, later among the slow."""

    def __init__(self, slow: Turns, turn: Turn) -> None:
        self._slow = slow
        self._turn: Turn | None = turn
        self._timer: asyncio.TimerHandle | None = None
        self.is_refused = False

    def watch(self, limit: asyncio.Timeout) -> None:
        """Set it apart in a moment."""
        self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self._set_apart, limit)

    def close(self) -> None:
        """Give the room back."""
        if self._timer is not None:
            self._timer.cancel()
        if self._turn is not None:
            self._turn.close()

    def _set_apart(self, limit: asyncio.Timeout) -> None:
        assert self._turn is not None
        tenant = self._turn.tenant
        self._turn.close()
        self._turn = self._slow.take(tenant)
        if self._turn is None:
            self.is_refused = True
            limit.reschedule(0.0)
