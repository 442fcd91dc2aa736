"""Signals: SIGTERM and SIGINT drain a server, SIGHUP reloads its configuration; a wrong one changes nothing.

Law: a reload never opens a server that asks for keys. A file that lost them, or is empty or half
written, leaves those in force that were; to serve without keys takes a restart.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Generator

from ganglion.core.errors import GanglionError
from ganglion.server.bind import StartRefused


class Shutdown:
    """The two ways to ask a server to shut down."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()

    def ask(self) -> None:
        """Drain; asked again, stop at once."""
        if self.drain.is_set():
            self.stop.set()
        self.drain.set()


@contextlib.contextmanager
def on_termination(shutdown: Shutdown) -> Generator[None, None, None]:
    """While inside, SIGTERM and SIGINT ask for a shutdown."""
    loop = asyncio.get_running_loop()
    taken = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only the main thread may listen for signals; elsewhere `shutdown` is the only way.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, shutdown.ask)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


async def first_of(*tasks: asyncio.Task[object] | asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Wait for the first of the tasks to end."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


_logger = logging.getLogger("ganglion.server")

ApplyConfig = Callable[[], None]
"""Puts a configuration into force; called on the event loop, and does not fail."""
_ReadConfig = Callable[[], ApplyConfig]
"""Reads the configuration again, off the event loop; raises what is wrong with it."""


@contextlib.contextmanager
def config_reloader(read: _ReadConfig) -> Generator[Callable[[], None], None, None]:
    """While inside, calling what it gives reloads the configuration; one reload runs at a time."""
    turn = asyncio.Lock()
    running: set[asyncio.Task[None]] = set()

    async def once() -> None:
        async with turn:
            try:
                apply = await asyncio.to_thread(read)
            except (GanglionError, StartRefused) as error:
                _log_refused_reload(error)
                return
            apply()
            _logger.info("the configuration was reloaded")

    def ask() -> None:
        task = asyncio.get_running_loop().create_task(once())
        running.add(task)
        task.add_done_callback(running.discard)

    try:
        yield ask
    finally:
        for task in running:
            task.cancel()


def check_keys_remain(*, is_keyed: bool, would_be_keyed: bool) -> None:
    """Raise StartRefused where a configuration would take the last key from a server that asks for one."""
    if is_keyed and not would_be_keyed:
        raise StartRefused(
            "It has no key any more, which would let everybody in; the keys that were valid stay valid.",
            hint="Keep a key in server.api_keys or server.admin_keys, or restart to serve without.",
        )


def _log_refused_reload(error: GanglionError | StartRefused) -> None:
    """Log why the configuration stays as it is."""
    _logger.error("the configuration was not reloaded: %s %s", error.message, error.hint or "")


@contextlib.contextmanager
def on_hangup(act: Callable[[], None]) -> Generator[None, None, None]:
    """While inside, SIGHUP calls `act`."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGHUP, act)
    except (ValueError, RuntimeError):  # only the main thread may listen for signals
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
