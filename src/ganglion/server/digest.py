"""Which conversations the prefix caches of a node know, by the names that a gateway gave them."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from ganglion.core.engine import Engine, ModelState
from ganglion.core.events import Event, Started
from ganglion.core.request import Request

MAX_AFFINITIES: Final = 512
"""More conversations than these are rarely warm at once, and all of them are told at each change."""

_AFFINITY: Final = re.compile(r"[0-9a-f]{1,64}")


class Digest:
    """The affinities that were last seen, the latest last."""

    def __init__(self) -> None:
        self._affinities: dict[str, None] = {}

    def note(self, affinity: str) -> None:
        """One that is warm now; a name that no gateway gives is not kept."""
        if not _AFFINITY.fullmatch(affinity):
            return
        self._affinities.pop(affinity, None)
        self._affinities[affinity] = None
        if len(self._affinities) > MAX_AFFINITIES:
            del self._affinities[next(iter(self._affinities))]

    def told(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._affinities)


class Remembering:
    """An engine that notes the affinity of each request that another one starts."""

    def __init__(self, inner: Engine, digest: Digest) -> None:
        self._inner = inner
        self._digest = digest

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's stream, unchanged."""
        events = self._inner.generate(request)
        return self._noted(events, request.affinity) if request.affinity else events

    async def _noted(self, events: AsyncGenerator[Event, None], affinity: str) -> AsyncGenerator[Event, None]:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Started):
                    self._digest.note(affinity)
                yield event
