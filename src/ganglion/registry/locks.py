"""Locks between processes, of the kind that huggingface_hub takes on the same cache."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

POLL_S: Final = 0.1


@contextmanager
def locked(path: Path, check: Callable[[], None] = lambda: None) -> Generator[None]:
    """Hold a lock file, made when it is missing; `check` is called while waiting and may raise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        while True:
            check()
            with suppress(Timeout):
                held.enter_context(FileLock(path, timeout=POLL_S))
                break
        yield
