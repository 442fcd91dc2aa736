"""Progress bars on stderr for what takes long: downloads, hashing, loads."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ganglion.cli.terminal.console import say
from ganglion.registry.hub.download import Report

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from ganglion.core.engine import ModelState

_Step = Callable[[str, int, int], None]
"""Told the status of a load, how many bytes are done and how many there are in all; 0 where none count."""


@contextmanager
def download_bar(title: str, total_bytes: int) -> Iterator[Report]:
    """Show a bar while the block runs; the report it yields moves it."""
    with _bar() as progress:
        task = progress.add_task(title, total=total_bytes)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def load_bar(title: str) -> Iterator[_Step]:
    """The same for a load, which has bytes to count only while it downloads."""
    with _bar() as progress:
        task = progress.add_task(title, total=None)

        def show(status: str, done: int, total: int) -> None:
            progress.update(task, description=f"{title} {status}", completed=done, total=total or None)

        yield show


class _DownloadBars:
    """A bar for each thing that is fetched, by its title."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self.is_drawn = not progress.disable

    def __call__(self, title: str, done: int, total: int) -> None:
        """Move a bar, or begin it."""
        if title not in self._tasks:
            self._tasks[title] = self._progress.add_task(title, total=total or None)
        self._progress.update(self._tasks[title], completed=done, total=total or None)


@contextmanager
def _download_bars() -> Iterator[_DownloadBars]:
    """Show a bar for each of several downloads while the block runs."""
    with _bar() as progress:
        yield _DownloadBars(progress)


@contextmanager
def count_bar(title: str, total: int) -> Iterator[Report]:
    """The same for things that are counted one by one."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    with _progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Show a spinner and the elapsed time while the block runs."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with _progress(TimeElapsedColumn(), before=(SpinnerColumn(),)) as progress:
        progress.add_task(title, total=None)
        yield


def _bar() -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    return _progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))


def _progress(*columns: "ProgressColumn", before: "tuple[ProgressColumn, ...]" = ()) -> "Progress":
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console = Console(stderr=True)
    title = TextColumn("{task.description}", markup=False)
    return Progress(
        *before, title, *columns, console=console, transient=True, disable=not console.is_terminal
    )


_LOOK_S: Final = 0.25
_SAY_S: Final = 10.0
"""How often it is said where no bar can be drawn."""


async def show_downloads(models: "Callable[[], tuple[ModelState, ...]]", opening: asyncio.Task[None]) -> None:
    """Show how far each download is, as bars on a terminal and as lines elsewhere, until all is opened."""
    loop = asyncio.get_running_loop()
    said_s = -_SAY_S
    with _download_bars() as show:
        while not opening.done() or any(model.status in ("downloading", "loading") for model in models()):
            fetching = [model for model in models() if model.status == "downloading"]
            for model in fetching:
                show(model.id, model.bytes_done, model.bytes_total)
            if fetching and not show.is_drawn and loop.time() >= said_s + _SAY_S:
                said_s = loop.time()
                for model in fetching:
                    done, total = model.bytes_done >> 20, model.bytes_total >> 20
                    say(f"downloading {model.id}: {done} of {total} MiB")
            await asyncio.sleep(_LOOK_S)
