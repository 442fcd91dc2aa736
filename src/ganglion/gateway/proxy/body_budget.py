"""A bound on the bytes of bodies that are still coming in, shared fairly among tenants."""

import asyncio
from typing import Final

from ganglion.core.errors import Overloaded
from ganglion.core.fair_queue import FairQueue
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore, PermitWaiter

SMALL_BYTES: Final = 64 * 2**10
"""A body that needs no room: what a connection holds anyway before it stops reading."""
ROOM_BYTES: Final = 64 * 2**20
_LARGE_BODIES: Final = 4
"""There is room for so many of the largest at least, and for half of it of one tenant."""
_WAITING: Final = 512
_WAITING_EACH: Final = 128
"""Bodies of the largest size that wait for room, and of one tenant; of smaller ones more."""
WAIT_S: Final = 10.0


def body_budget(max_bytes: int) -> FairSemaphore:
    """Room for bodies, or messages, of at most so many bytes each."""
    room = max(ROOM_BYTES, _LARGE_BODIES * max_bytes)
    queue: FairQueue[PermitWaiter] = FairQueue(
        most=_WAITING * max_bytes, most_each=_WAITING_EACH * max_bytes, of="bodies"
    )
    return FairSemaphore(room, room // 2, queue)


async def wait_for_room(budget: FairSemaphore, tenant: str, size_bytes: int) -> FairPermit:
    """Room for a body, once there is some; raises Overloaded when there is none for too long."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await budget.enter(tenant, size_bytes)
    except TimeoutError:
        raise Overloaded(
            "The server is reading as many large bodies as it may.", hint="Retry in a moment."
        ) from None
