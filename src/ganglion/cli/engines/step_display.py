"""How far a build or an installation is: a bar on a terminal, and a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ganglion.cli.terminal.console import say, visible

_SAY_S: Final = 10.0
_WORDS: Final = 60
"""Columns for what is being done: names of wheels are long."""

Show = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done, and of how many; 0 while that is not known."""


@contextmanager
def steps(title: str) -> Iterator[Show]:
    """Show the steps of what runs in the block."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title).show
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)

        def show(words: str, done: int, total: int) -> None:
            shown = f"{title}: {_shortened(words)}"
            progress.update(task, description=shown, completed=done, total=total or None)

        yield show


class _Lines:
    """Says a line when some time has passed, and when something else begins that is not counted."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._said_s = -_SAY_S
        self._last = ""

    def show(self, words: str, done: int, total: int) -> None:
        """Say it, or leave it out."""
        now_s = time.monotonic()
        is_new = total == 0 and words != self._last
        if now_s < self._said_s + _SAY_S and not is_new:
            return
        self._said_s, self._last = now_s, words
        count = f" {done} of {total}" if total else ""
        say(f"{self._title}:{count} {_shortened(words)}")


def _shortened(words: str) -> str:
    words = visible(words)
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
