"""The last lines that the worker's processes wrote to stderr, which still go where they went.

vLLM tells why a process of its own did not start nowhere else.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Final

_KEPT_LINES: Final = 400
_CHUNK: Final = 64 * 1024


class ErrorLog:
    """What was written last."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = b""
        self._lock = threading.Lock()

    @classmethod
    def begin(cls) -> "ErrorLog":
        """Read along from now on what this process and its children write to stdout and stderr."""
        log = cls()
        ours, theirs = os.pipe()
        shown = os.dup(2)
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        os.close(theirs)
        threading.Thread(target=log._copy, args=(ours, shown), daemon=True, name="stderr").start()
        return log

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        with self._lock:
            return [*self._lines, self._rest.decode("utf-8", "replace")]

    def _copy(self, source: int, shown: int) -> None:
        while data := os.read(source, _CHUNK):
            with suppress(OSError):  # whoever read it is gone, which is no reason to stop
                os.write(shown, data)
            with self._lock:
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._rest = self._rest[-_CHUNK:]
                self._lines.extend(line.decode("utf-8", "replace") for line in lines)
