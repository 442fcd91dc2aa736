"""A model's second worker, for requests that may have killed the first: there only while some are.

Law: it is started by the first that needs it, ended when none has for `_LINGER_S`, and gone after `close()`.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ganglion.core.errors import GanglionError, ModelRecovering, ShuttingDown
from ganglion.engines.supervision.connection import Connection
from ganglion.engines.supervision.supervisor import Supervisor

_logger = logging.getLogger("ganglion.engines")

_LINGER_S: Final = 10.0
"""How long it stays for the next one: longer than a client waits before it tries again."""
_REFUSED_S: Final = 60.0
"""How long after a failed start none is tried."""

_MakeSupervisor = Callable[[], Supervisor | None]
"""A supervisor that is not open yet; None where there is no room for its worker."""


class SecondWorker:
    """Starts and ends a model's second worker."""

    def __init__(self, name: str, make: _MakeSupervisor, linger_s: float = _LINGER_S) -> None:
        self._name = name
        self._make = make
        self._linger_s = linger_s
        self._supervisor: Supervisor | None = None
        self._changing = asyncio.Lock()
        self._lingering: asyncio.Task[None] | None = None
        self._users = 0
        self._idle_since_s = self._refused_until_s = 0.0
        self._restarts = 0
        self._is_closed = False

    @property
    def is_available(self) -> bool:
        """Whether it is there, or could be."""
        if self._supervisor is not None:
            return True
        return asyncio.get_running_loop().time() >= self._refused_until_s and self._make() is not None

    @property
    def process_id(self) -> int | None:
        """The number of its process, while there is one."""
        return None if self._supervisor is None else self._supervisor.process_id

    @property
    def restarts(self) -> int:
        """How often it was started again after its death."""
        return self._restarts + (0 if self._supervisor is None else self._supervisor.restarts)

    async def enter(self) -> Connection:
        """The worker to talk to, started now if need be, until `leave`; raises why it cannot be."""
        self._users += 1
        try:
            async with self._changing:
                supervisor = await self._opened()
            return await supervisor.connection()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Report that whoever entered needs it no longer."""
        self._users -= 1
        self._idle_since_s = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End it for good."""
        self._is_closed = True
        if self._lingering is not None:
            self._lingering.cancel()
            with suppress(asyncio.CancelledError):
                await self._lingering
        async with self._changing:
            await self._end()

    async def _opened(self) -> Supervisor:
        if self._is_closed:
            raise ShuttingDown("The model is being unloaded.")
        if self._supervisor is not None and self._supervisor.status == "failed":
            await self._end()
        supervisor = self._supervisor = self._supervisor or self._make()
        if supervisor is None:
            raise ModelRecovering("There is no room for a second worker now.")
        if supervisor.status == "unloaded":
            await self._open(supervisor)
        return supervisor

    async def _open(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.open()
        except GanglionError as error:
            _logger.warning(
                "%s: the second worker for suspect requests did not start: %s", self._name, error.message
            )
            self._refused_until_s = asyncio.get_running_loop().time() + _REFUSED_S
            self._supervisor = None
            raise
        if self._lingering is None or self._lingering.done():
            self._lingering = asyncio.create_task(self._linger(), name=f"second worker of {self._name}")

    async def _linger(self) -> None:
        """End it once nobody has needed it for a while."""
        loop = asyncio.get_running_loop()
        while self._supervisor is not None:
            await asyncio.sleep(self._linger_s / 2)
            async with self._changing:
                if self._users == 0 and loop.time() >= self._idle_since_s + self._linger_s:
                    await self._end()

    async def _end(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
            self._restarts += self._supervisor.restarts
            self._supervisor = None
