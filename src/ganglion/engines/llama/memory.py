"""How much memory and how many cores this process may take, and how much memory one takes."""

import os

import psutil

from ganglion.core.machine import Memory
from ganglion.engines.cgroup import allowed_cores, allowed_memory


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
    """What is left of it."""
    return read_memory().free_bytes


def usable_cores() -> int:
    """The cores this process may run on, or the container's share of time if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, allowed_cores() or cores)


def resident_bytes(process_id: int | None) -> int:
    """What a process has touched of its memory; 0 when it is not there or nobody says."""
    try:
        return int(psutil.Process(process_id).memory_info().rss) if process_id is not None else 0
    except psutil.Error:
        return 0
