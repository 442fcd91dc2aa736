"""Keeps one worker process alive: start, watch, restart with back-off, stop.

Law: at most one worker at a time, and none outlives `close()`.
"""

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from typing import Final

from ganglion.core.engine import Status
from ganglion.core.errors import EngineFailed, GanglionError, ModelRecovering, ShuttingDown
from ganglion.engines.connection import Connection
from ganglion.engines.ipc import Stop

logger = logging.getLogger("ganglion.engines")

BACKOFF_S: Final = (0.05, 0.25, 1.0, 3.0, 10.0)
"""Pauses before each restart; a worker that dies more often in a row than that is given up."""
HEALTHY_S: Final = 30.0
"""A worker that lived this long starts the count of deaths anew."""
RECOVERY_WAIT_S: Final = 10.0
"""How long a new request waits for a restart before it is told to come back."""
LOAD_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 3.0


class Supervisor:
    """One model's worker, as the rest of the server sees it."""

    def __init__(self, name: str, module: str, plan: bytes) -> None:
        self._name = name
        self._module = module
        self._plan = plan
        self._process: asyncio.subprocess.Process | None = None
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._is_closing = False
        self.status: Status = "unloaded"
        self.error: GanglionError | None = None
        self.restarts = 0
        self.process_id: int | None = None

    @property
    def current(self) -> Connection | None:
        """The connection to the living worker, if there is one."""
        return self._connection

    async def open(self) -> None:
        """Start the first worker; raises why it could not load."""
        self.status = "loading"
        try:
            await self._start()
        except GanglionError as error:
            self.status, self.error = "failed", error
            await self._reap()
            raise
        self._watch = asyncio.create_task(self._keep_alive(), name=f"supervise {self._name}")

    async def close(self, keep_s: float = 0.0) -> None:
        """End the worker, giving it `keep_s` to keep its hot prefixes, and wait until it is gone."""
        self._is_closing = True
        self.status = "unloaded"
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        if self._connection is not None:
            self._connection.send(Stop(keep_s))
        await self._reap(keep_s)
        self._up.set()

    async def connection(self) -> Connection:
        """The worker to talk to, waiting a moment while it is being restarted."""
        if self._connection is None and self.status == "recovering":
            with suppress(TimeoutError):
                await asyncio.wait_for(self._up.wait(), RECOVERY_WAIT_S)
        if self._connection is not None:
            return self._connection
        if self._is_closing:
            raise ShuttingDown("The server is shutting down.")
        if self.error is not None:
            raise EngineFailed(f"The engine is down: {self.error.message}")
        raise ModelRecovering(f"The model {self._name!r} is being restarted after a crash.")

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.process_id = self._process.pid
        ours.setblocking(False)
        self._lost.clear()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self._on_lost), sock=ours)
        connection.send_raw(self._plan)
        try:
            ready = await asyncio.wait_for(connection.ready, LOAD_TIMEOUT_S)
        except TimeoutError:
            connection.abort()
            raise EngineFailed(f"The model was not loaded within {LOAD_TIMEOUT_S:g} s.") from None
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        self.status, self.error = "loaded", None
        self._up.set()
        logger.info("%s: worker %s loaded in %.2f s", self._name, self.process_id, ready.load_s)

    def _on_lost(self) -> None:
        self._connection = None
        self._up.clear()
        self._lost.set()
        if not self._is_closing and self.status == "loaded":
            self.status = "recovering"

    async def _keep_alive(self) -> None:
        deaths = 0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            await self._lost.wait()
            deaths = 1 if loop.time() - began_s > HEALTHY_S else deaths + 1
            code = await self._reap()
            if deaths > len(BACKOFF_S):
                self.status = "failed"
                self.error = self.error or EngineFailed(f"the worker died {deaths} times in a row")
                self._up.set()
                logger.error("%s: given up after %d deaths in a row", self._name, deaths)
                return
            pause_s = BACKOFF_S[deaths - 1]
            logger.warning("%s: worker ended with %s, restarting in %g s", self._name, code, pause_s)
            await asyncio.sleep(pause_s)
            self.restarts += 1
            began_s = loop.time()
            try:
                await self._start()
            except (GanglionError, OSError) as error:
                self.error = error if isinstance(error, GanglionError) else EngineFailed(str(error))
                self.status = "recovering"
                self._lost.set()

    async def _reap(self, keep_s: float = 0.0) -> int | None:
        """Wait for the process to end, and see to it that it does."""
        process, self._process, self.process_id = self._process, None, None
        if process is None:
            return None
        try:
            grace_s = STOP_TIMEOUT_S + keep_s if self._is_closing else 0.2
            return await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            return await process.wait()
