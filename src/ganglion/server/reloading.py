"""A configuration that is read again while a server runs: one at a time, and a wrong one changes nothing.

Law: reading it again never opens a server that asks for keys. A file that lost them, or is empty or half
written, leaves those in force that were; to serve without keys takes a restart.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Generator

from ganglion.core.errors import GanglionError
from ganglion.server.bind import StartRefused

logger = logging.getLogger("ganglion.server")

Apply = Callable[[], None]
"""Puts a configuration into force; called on the event loop, and does not fail."""
Read = Callable[[], Apply]
"""Reads the configuration again, off the event loop; raises what is wrong with it."""


@contextlib.contextmanager
def reloading(read: Read) -> Generator[Callable[[], None], None, None]:
    """While inside, a call of what it gives has the configuration read again."""
    turn = asyncio.Lock()
    running: set[asyncio.Task[None]] = set()

    async def once() -> None:
        async with turn:
            try:
                apply = await asyncio.to_thread(read)
            except (GanglionError, StartRefused) as error:
                tell_refused(error)
                return
            apply()
            logger.info("the configuration was reloaded")

    def ask() -> None:
        task = asyncio.get_running_loop().create_task(once())
        running.add(task)
        task.add_done_callback(running.discard)

    try:
        yield ask
    finally:
        for task in running:
            task.cancel()


def refuse_to_open(*, is_keyed: bool, would_be_keyed: bool) -> None:
    """Raise StartRefused where a configuration would take the last key from a server that asks for one."""
    if is_keyed and not would_be_keyed:
        raise StartRefused(
            "It has no key any more, and everybody could come in: the keys that were valid stay so.",
            hint="Keep a key in server.api_keys or server.admin_keys, or restart to serve without.",
        )


def tell_refused(error: GanglionError | StartRefused) -> None:
    """Log why the configuration stays as it is."""
    logger.error("the configuration was not reloaded: %s %s", error.message, error.hint or "")


@contextlib.contextmanager
def on_hangup(act: Callable[[], None]) -> Generator[None, None, None]:
    """While inside, SIGHUP has something done."""
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
