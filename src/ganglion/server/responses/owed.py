"""Endings that the store refused, tried again until it takes them: nothing reads as running for ever."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.server.state import State
from ganglion.store.values import StoredEvent, StoredResponse

logger = logging.getLogger("ganglion.server")

RETRY_S: Final = 1.0
MAX_OWED: Final = 256
"""What is beyond it reads as failed after the next start; a disk that is full should not fill the memory."""


class Owed:
    """What the store is owed, by tenant and response."""

    def __init__(self, state: State) -> None:
        self._store = state.store
        self._background = state.background
        self._endings: dict[tuple[str, str], tuple[StoredResponse, Sequence[StoredEvent]]] = {}

    def add(self, ended: StoredResponse, events: Sequence[StoredEvent]) -> None:
        """Note an ending that could not be kept."""
        if len(self._endings) >= MAX_OWED:
            logger.error("%s will read as running until the next start", ended.id)
            return
        is_first = not self._endings
        self._endings[ended.tenant, ended.id] = ended, events
        if is_first:
            self._background.start(self._settle(), "settle with the store")

    async def _settle(self) -> None:
        assert self._store is not None
        while self._endings:
            await asyncio.sleep(RETRY_S)
            for key, (ended, events) in tuple(self._endings.items()):
                try:
                    await self._store.replace(ended, events=events)
                except GanglionError:
                    break
                del self._endings[key]
