"""Signs that a load gets on, from the processor time that this process and those it started take.

Loading a large model takes as long as it takes; one that stands still is to be ended all the same.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil

from ganglion.engines.supervision.launch import group_members

_LOOK_S: Final = 2.0
_LEAST_S: Final = 0.1
"""Processor time between two looks that counts: a process that waits takes some, too."""


class LoadProgressSigns:
    """Calls `tell` on a thread of its own while the block runs and processor time is taken."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="load progress")

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End; nothing is told after that."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        taken_s = _processor_s()
        while not self._is_over.wait(_LOOK_S):
            before_s, taken_s = taken_s, _processor_s()
            if taken_s - before_s > _LEAST_S:
                self._tell()


def _processor_s() -> float:
    """What all processes of this group have taken so far."""
    total_s = 0.0
    for process in group_members(os.getpgid(0)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s
