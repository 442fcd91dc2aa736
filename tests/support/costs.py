"""What a test costs: `unit`, `process` or `model`, found from what its file and its helpers use.

A file that names a means of starting a server or a process, or imports
a helper that does, is `process`; all others are `unit`, and a guard refuses what these start.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import current_thread, main_thread

import pytest

TESTS = Path(__file__).parents[1]
STARTS = re.compile(
    r"\b(subprocess|Popen|runpy|fork|pty|multiprocessing|start_server|create_server|start_unix_server|uvicorn"
    r"|http\.server|life\.serve|HubServer|free_port|grpc\.aio|serving|served|strace|postgres|open_connection"
    r"|LlamaEngine|Supervisor|Renderer|ImageDecoder|CliRunner)\b"
)
"""Names of what starts a server or a process, or is served by one."""
IMPORT = re.compile(r"^\s*(?:from|import) ([\w.]+)", re.MULTILINE)
STARTING_EVENTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "socket.bind"}


@cache
def starts_something(file: Path) -> bool:
    """Whether tests of this file start a server or a process, or a helper that it imports does."""
    text = file.read_text()
    return bool(STARTS.search(text)) or any(starts_something(helper) for helper in _helpers(file, text))


def _helpers(file: Path, text: str) -> list[Path]:
    """The modules among the tests that it imports, by any of the ways in which they are named."""
    names = [name.removeprefix("tests.").replace(".", "/") + ".py" for name in IMPORT.findall(text)]
    found = (folder / name for name in names for folder in (file.parent, TESTS))
    return [helper for helper in found if helper.is_file() and helper != file]


class Guard:
    """Refuses to start a server or a process while a `unit` test runs."""

    def __init__(self) -> None:
        self.is_on = False
        sys.addaudithook(self._hear)  # hooks stay for the life of the process: there is one guard

    @contextmanager
    def over(self, item: pytest.Item) -> Iterator[None]:
        """On for this block, if the test is `unit`."""
        self.is_on = item.get_closest_marker("unit") is not None
        try:
            yield
        finally:
            self.is_on = False

    def _hear(self, event: str, _: tuple[object, ...]) -> None:
        # Threads that an earlier test left behind are not this one's.
        if self.is_on and event in STARTING_EVENTS and current_thread() is main_thread():
            raise AssertionError(f"{event} in a test marked `unit`: name what starts it in support/costs.py")
