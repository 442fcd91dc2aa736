"""How a server is asked to leave: once to drain, twice to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Generator


class Shutdown:
    """The two ways to ask a server to leave."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()

    def ask(self) -> None:
        """Drain; asked again, stop at once."""
        if self.drain.is_set():
            self.stop.set()
        self.drain.set()


@contextlib.contextmanager
def signals(shutdown: Shutdown) -> Generator[None, None, None]:
    """While inside, SIGTERM and SIGINT ask to leave."""
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
    """Wait for whichever ends first."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
