"""Keeps as many replicas of each model as are needed: looks, and has models loaded and let go."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from ganglion.core.errors import GanglionError
from ganglion.gateway.catalogue import Catalogue
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.scaling import Action, Grow, Memory, scale

logger = logging.getLogger("ganglion.gateway")

PERIOD_S: Final = 1.0


class Mover(Protocol):
    """Whoever has models loaded and let go; a FleetLoader is one."""

    async def load_on(self, model: str, node: str) -> None:
        """Have one node hold a model."""
        ...

    async def unload_from(self, model: str, node: str) -> None:
        """Have one node let a model go."""
        ...


class Scaler:
    """A loop over `scale`; for each model at most one change is under way."""

    def __init__(
        self,
        fleet: Fleet,
        catalogue: Catalogue,
        mover: Mover,
        *,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
    ) -> None:
        self.catalogue = catalogue
        """May be replaced by another one at any time."""
        self._fleet = fleet
        self._mover = mover
        self._clock = clock
        self._period_s = period_s
        self._memory: Memory = {}
        self._changes: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look again and again until cancelled; what is under way then is not waited for."""
        try:
            while True:
                self.look()
                await asyncio.sleep(self._period_s)
        finally:
            changes = list(self._changes.values())
            for change in changes:
                change.cancel()
            await asyncio.gather(*changes, return_exceptions=True)

    def look(self) -> tuple[Action, ...]:
        """Look once, and begin what is to do."""
        actions, self._memory = scale(
            self._fleet.nodes, self.catalogue, self._fleet.learned, self._memory, self._clock()
        )
        begun = tuple(action for action in actions if action.model not in self._changes)
        for action in begun:
            task = asyncio.create_task(self._act(action), name=f"scale {action.model}")
            self._changes[action.model] = task
            task.add_done_callback(lambda _, model=action.model: self._changes.pop(model))  # type: ignore[misc]
        return begun

    async def _act(self, action: Action) -> None:
        verb = "grows to" if isinstance(action, Grow) else "leaves"
        logger.info("model %s %s %s: %s", action.model, verb, action.node, action.why)
        try:
            if isinstance(action, Grow):
                await self._mover.load_on(action.model, action.node)
            else:
                await self._mover.unload_from(action.model, action.node)
        except GanglionError as error:
            logger.warning("model %s: %s", action.model, error.message)
