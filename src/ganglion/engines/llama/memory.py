"""How much memory and how many cores this process may take, and how much memory one takes."""

import os
from typing import Final

import psutil

from ganglion.core.machine import Memory
from ganglion.engines.cgroup import allowed_cores, allowed_memory

FRESH_S: Final = 1.0
"""A look at another process costs 30 µs, and models are looked at with every request."""


def read_memory() -> Memory:
    """What the machine has, or the container if that is less."""
    machine = psutil.virtual_memory()
    allowed = allowed_memory()
    if allowed is None:
        return Memory(int(machine.total), int(machine.available))
    return Memory(
        min(int(machine.total), allowed.total_bytes), min(int(machine.available), allowed.free_bytes)
    )


def free_bytes() -> int:
    """What is left of it; nothing while the system does not say, which takes a file handle."""
    try:
        return read_memory().free_bytes
    except OSError:
        return 0


def usable_cores() -> int:
    """The cores this process may run on, or the container's share of time if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, allowed_cores() or cores)


class ResidentMemory:
    """What a process has touched of its memory, looked up once a second at most."""

    def __init__(self) -> None:
        self._process_id: int | None = None
        self._until_s = 0.0
        self._size_bytes = 0

    def of(self, process_id: int | None, now_s: float) -> int:
        """In bytes; 0 when the process is not there or nobody says."""
        if process_id != self._process_id or now_s >= self._until_s:
            self._process_id, self._until_s = process_id, now_s + FRESH_S
            self._size_bytes = _resident_bytes(process_id)
        return self._size_bytes


def _resident_bytes(process_id: int | None) -> int:
    try:
        return int(psutil.Process(process_id).memory_info().rss) if process_id is not None else 0
    except (psutil.Error, OSError):
        return 0  # it is gone, or this process has no file handle left to look at it
