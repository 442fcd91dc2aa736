"""A progress bar on stderr for the one long thing a first start does."""

from collections.abc import Iterator
from contextlib import contextmanager

from ganglion.registry.download import Report


@contextmanager
def download_bar(title: str, total_bytes: int) -> Iterator[Report]:
    """Show a bar while the block runs; the report it yields moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total_bytes)
        yield lambda done, total: progress.update(task, completed=done, total=total)
