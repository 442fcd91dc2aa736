"""A bound on the bytes of images and sounds that running requests hold, over all tenants and for each.

Reason: a text that is too long for a model is refused and gone, and an image of megabytes fits a few hundred
tokens: it stays until its answer ends, and answers take minutes.
"""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from ganglion.core.attachments import attachments_of
from ganglion.core.delivery import Delivery, Sink, generate_into, give, pulled
from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import Overloaded
from ganglion.core.events import Event, Failed
from ganglion.core.request import Request

ROOM_BYTES: Final = 256 * 2**20
ROOM_BYTES_EACH: Final = ROOM_BYTES // 2
"""Of all tenants and of one; a request that finds nothing held may be as large as any."""


class ImageMemory:
    """Who holds how much."""

    def __init__(self, room: int = ROOM_BYTES, each: int = ROOM_BYTES_EACH) -> None:
        self._room = room
        self._each = each
        self._used = 0
        self._held: dict[str, int] = {}
        self._sharers: dict[int, int] = {}
        """How many requests run over one prompt, which the choices of a call share."""

    @property
    def used(self) -> int:
        """How much is held."""
        return self._used

    def hold(self, request: Request) -> None:
        """Hold the files of a request from now on; raises Overloaded where there is no room."""
        key = id(request.prompt)
        if key not in self._sharers:
            self._take(request.tenant, _size_of(request))
        self._sharers[key] = self._sharers.get(key, 0) + 1

    def release(self, request: Request) -> None:
        """Hold them no longer, once the last who shares them has ended."""
        key = id(request.prompt)
        self._sharers[key] -= 1
        if not self._sharers[key]:
            del self._sharers[key]
            self._give_back(request.tenant, _size_of(request))

    def _take(self, tenant: str, size: int) -> None:
        held = self._held.get(tenant, 0)
        if (self._used and self._used + size > self._room) or (held and held + size > self._each):
            raise Overloaded(
                "The requests that run hold as many bytes of images as they may.", hint="Retry in a moment."
            )
        self._used += size
        self._held[tenant] = held + size

    def _give_back(self, tenant: str, size: int) -> None:
        self._used -= size
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]


def _size_of(request: Request) -> int:
    return sum(len(each.data) for each in attachments_of(request.prompt))


class ImageBoundedEngine:
    """The inner engine, over requests whose files there is room for."""

    def __init__(self, inner: Engine, memory: ImageMemory | None = None) -> None:
        self._inner = inner
        self._memory = memory or ImageMemory()

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's answer."""
        return pulled(partial(self.generate_into, request))

    def generate_into(self, request: Request, sink: Sink[Event]) -> Delivery:
        """Deliver the inner engine's answer."""
        if not attachments_of(request.prompt):
            return generate_into(self._inner, request, sink)
        return self._held_into(request, sink)

    async def _held_into(self, request: Request, sink: Sink[Event]) -> None:
        try:
            self._memory.hold(request)
        except Overloaded as error:
            await give(sink, Failed(error))
            return
        try:
            await generate_into(self._inner, request, sink)
        finally:
            self._memory.release(request)
