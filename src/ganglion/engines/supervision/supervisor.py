"""Keeps one worker process alive: start, watch, restart with back-off, stop.

Law: at most one worker at a time, and none outlives `close()`. A worker that hangs is killed and counts as
one that crashed.
"""

import asyncio
import errno
import logging
import os
import socket
from contextlib import ExitStack, suppress
from typing import Final

from ganglion.core.engine import Status
from ganglion.core.errors import EngineFailed, GanglionError, ModelRecovering, ShuttingDown
from ganglion.engines.child import command, describe_exit
from ganglion.engines.supervision.connection import Connection, WorkerDied
from ganglion.engines.supervision.ipc import WorkerReady
from ganglion.engines.supervision.launch import WorkerLaunch
from ganglion.engines.supervision.watchdog import Watchdog, WorkerLimits

_logger = logging.getLogger("ganglion.engines")

_EXIT_GRACE_S = 0.2
"""How long a worker whose line is cut may take to end, so that its own exit code is seen."""

_BLAS_ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""Numpy's own threads would spin on the cores that the model computes on: 16 % of reading a prompt out."""
_NO_HANDLES: Final = "This process has as many files and sockets open as it may; raise its limit (ulimit -n)."
_LOAD_HINT = "A worker that is killed while it loads is often too large for the memory that is left."


class _CannotSpawn(EngineFailed):
    """The system has no process, handle or memory for a worker now; that says nothing about the worker."""


class Supervisor:
    """One model's worker, as the rest of the server sees it."""

    def __init__(
        self, name: str, module: str, plan: bytes, limits: WorkerLimits, launch: WorkerLaunch | None = None
    ) -> None:
        self._name = name
        self._module = module
        self._plan = plan
        self._limits = limits
        self._launch = launch or WorkerLaunch()
        self._process: asyncio.subprocess.Process | None = None
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._is_closing = False
        self.status: Status = "unloaded"
        self.error: GanglionError | None = None
        """Why the worker died last, until the next one is up; when it is given up, why that is."""
        self.restarts = 0
        self.process_id: int | None = None

    @property
    def current(self) -> Connection | None:
        """The connection to the living worker, if there is one."""
        return self._connection

    async def open(self) -> None:
        """Start the first worker; raises why it could not load."""
        self._is_closing = False
        self.status = "loading"
        try:
            connection = await self._start()
        except GanglionError as error:
            self.status, self.error = "failed", error
            await self._reap()
            raise
        except BaseException:
            self.status = "unloaded"
            await self._reap()
            raise
        self._watch = asyncio.create_task(self._keep_alive(connection), name=f"supervise {self._name}")

    async def close(self, keep_s: float = 0.0) -> None:
        """End the worker, giving it `keep_s` to keep its hot prefixes, and wait until it is gone."""
        self._is_closing = True
        self.status = "unloaded"
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        if self._connection is not None:
            self._connection.stop(keep_s)
        await self._reap(self._limits.stop_s + keep_s)
        self._up.set()

    async def connection(self) -> Connection:
        """The worker to talk to, waiting a moment while it is being restarted."""
        if self._connection is None and self.status == "recovering":
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.recovery_wait_s):
                    while self._connection is None and self.status == "recovering":
                        await self._up.wait()
        if self._connection is not None:
            return self._connection
        if self._is_closing:
            raise ShuttingDown("The server is shutting down.")
        if self.status == "failed" and self.error is not None:
            raise EngineFailed(f"The engine is down: {self.error.message}")
        raise ModelRecovering(f"The model {self._name!r} is being restarted after a crash.")

    async def _start(self, *, is_again: bool = False) -> Connection:
        connection = await self._spawn()
        self.restarts += is_again
        connection.send_raw(self._plan)
        try:
            ready = await self._loaded(connection)
        except TimeoutError:
            connection.abort()
            raise EngineFailed(f"The model was not loaded within {self._limits.load_s:g} s.") from None
        except WorkerDied:
            ending = describe_exit(await self._reap())
            raise EngineFailed(f"The worker {ending} while it loaded the model.", hint=_LOAD_HINT) from None
        except BaseException:
            connection.abort()
            raise
        if connection.is_lost:
            raise EngineFailed(
                f"The worker {describe_exit(await self._reap())} as soon as it had loaded the model."
            )
        self._connection = connection
        self.status, self.error = "loaded", None
        self._up.set()
        _logger.info("%s: worker %s loaded in %.2f s", self._name, self.process_id, ready.load_s)
        return connection

    async def _loaded(self, connection: Connection) -> WorkerReady:
        """What the worker says once it has loaded; raises TimeoutError where it does not get on with it."""
        seen = None
        while connection.vitals.answers != seen:
            seen = connection.vitals.answers
            with suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(connection.ready), self._limits.load_s)
        raise TimeoutError

    async def _spawn(self) -> Connection:
        """A process at the other end of a new socket, which it alone inherits."""
        with ExitStack() as opened:
            try:
                ours, theirs = socket.socketpair()
                opened.callback(ours.close)
                with theirs:
                    self._process = await asyncio.create_subprocess_exec(
                        *command(self._module, str(theirs.fileno()), python=self._launch.python),
                        pass_fds=[theirs.fileno()],
                        stdin=asyncio.subprocess.DEVNULL,
                        env={**_BLAS_ENVIRONMENT, **os.environ, **self._launch.environment},
                        start_new_session=self._launch.leads_group,
                    )
                self.process_id = self._process.pid
                ours.setblocking(False)
                self._lost.clear()
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._on_lost), sock=ours
                )
            except OSError as error:
                hint = _NO_HANDLES if error.errno in (errno.EMFILE, errno.ENFILE) else None
                raise _CannotSpawn(f"The worker could not be started: {error}.", hint=hint) from error
            opened.pop_all()
        return connection

    def _on_lost(self) -> None:
        self._connection = None
        self._up.clear()
        self._lost.set()
        if not self._is_closing and self.status == "loaded":
            self.status = "recovering"

    async def _keep_alive(self, connection: Connection) -> None:
        deaths: list[str] = []
        while True:
            cause, healthy_s = await self._attend(connection)
            if healthy_s > self._limits.healthy_s:
                deaths.clear()
            deaths.append(cause)
            again = await self._restart(deaths)
            if again is None:
                return
            connection = again

    async def _attend(self, connection: Connection) -> tuple[str, float]:
        """Watch a worker until it is gone; says what ended it, and for how long it had done its work."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        watchdog = Watchdog(self._limits, began_s)
        trouble = None
        while not self._lost.is_set():
            connection.ping()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), self._limits.ping_s)
                break
            trouble = watchdog.look(connection.vitals, loop.time())
            if trouble is not None:
                self._kill()
                connection.give_up(trouble)
                await self._lost.wait()
        healthy_s = loop.time() - began_s - watchdog.troubled_s
        ending = describe_exit(await self._reap())
        return f"The worker {trouble or ending}", healthy_s

    async def _restart(self, deaths: list[str]) -> Connection | None:
        """A new worker after some deaths, which failed starts add to; None when there were too many."""
        pauses_s = self._limits.backoff_s
        tries = 0
        while len(deaths) <= len(pauses_s):
            pause_s = pauses_s[min(len(deaths) + tries, len(pauses_s)) - 1]
            self.status, self.error = "recovering", EngineFailed(f"{deaths[-1]}.")
            _logger.warning("%s: %s; restarting in %g s", self._name, deaths[-1], pause_s)
            await asyncio.sleep(pause_s)
            try:
                return await self._start(is_again=True)
            except _CannotSpawn as error:
                # Whatever else the system lacks it may have again: the model is never given up for it.
                await self._reap()
                tries += 1
                deaths[-1] = error.message.rstrip(".")
            except GanglionError as error:
                await self._reap()
                deaths.append(error.message.rstrip("."))
        count, last = len(deaths), deaths[-1]
        is_same = len(set(deaths)) == 1
        mixed = f"The worker died {count} times in a row, the last time like this: {last}."
        self.error = EngineFailed(f"{last} {count} times in a row." if is_same else mixed)
        self.status = "failed"
        self._up.set()
        _logger.error("%s: the worker is not restarted any more. %s", self._name, self.error.message)
        return None

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._launch.kill(self._process.pid)

    async def _reap(self, grace_s: float = _EXIT_GRACE_S) -> int:
        """Wait for the process to end, and see to it that it does; its exit code, or minus its signal."""
        if self._process is None:
            return 0
        try:
            code = await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self._kill()
            code = await self._process.wait()
        await self._launch.clear(self._process.pid)
        # Only now: whoever is cancelled while it waits leaves the process to the next one to wait for.
        self._process = self.process_id = None
        return code
