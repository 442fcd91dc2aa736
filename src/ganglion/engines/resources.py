"""How much memory and how many cores this process may take, and how much memory one takes."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from ganglion.core.machine import Memory

# Law: limits are hierarchical: every group from the process's own up to the mount counts, the tightest
# wins.

_UNLIMITED_BYTES: Final = 2**60
"""The first version writes its largest number of whole pages where there is no limit."""


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    """The names that one version of the interface gives to limits, use, and the cache that can be dropped."""

    limits: tuple[str, ...]
    used: str
    droppable: str


_MEMORY_V2: Final = _MemoryFiles(("memory.max", "memory.high"), "memory.current", "inactive_file")
_MEMORY_V1: Final = _MemoryFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def allowed_memory(root: Path = Path("/")) -> Memory | None:
    """The tightest memory limit and what is left under the fullest one; None without a limit."""
    found = [
        *_limits(_groups(root, "", "cgroup2"), _MEMORY_V2),
        *_limits(_groups(root, "memory", "cgroup"), _MEMORY_V1),
    ]
    if not found:
        return None
    return Memory(min(each.total_bytes for each in found), min(each.free_bytes for each in found))


def allowed_cores(root: Path = Path("/")) -> int | None:
    """How many cores' worth of time the process gets, rounded up; None without a limit."""
    found: list[float] = []
    for group in _groups(root, "", "cgroup2"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        found += _ratio(quota, period)
    for group in _groups(root, "cpu", "cgroup"):
        found += _ratio(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))
    return max(1, math.ceil(min(found))) if found else None


def _limits(groups: Iterator[Path], files: _MemoryFiles) -> Iterator[Memory]:
    for group in groups:
        limits = [number for name in files.limits if (number := _number(_text(group / name))) is not None]
        used = _number(_text(group / files.used))
        if not limits or used is None or min(limits) >= _UNLIMITED_BYTES:
            continue
        # Cached files count as used, and the kernel gives the inactive ones up before it refuses anybody.
        droppable = _number(_field(group / "memory.stat", files.droppable)) or 0
        limit = min(limits)
        yield Memory(limit, max(limit - max(used - droppable, 0), 0))


def _groups(root: Path, controller: str, kind: str) -> Iterator[Path]:
    """The folder of the process's own group of a hierarchy, then those of the groups above it."""
    own = _own_path(_text(root / "proc/self/cgroup"), controller)
    for top, mount in _mounts(_text(root / "proc/self/mountinfo"), controller, kind):
        folder = root / mount.lstrip("/")
        # A container may see a mount that begins at its own group and a path that begins at the host's top.
        inside = PurePosixPath(own)
        below = inside.relative_to(top) if inside.is_relative_to(top) else PurePosixPath()
        if ".." in below.parts:
            below = PurePosixPath()
        for count in range(len(below.parts), -1, -1):
            yield folder.joinpath(*below.parts[:count])


def _own_path(cgroup: str, controller: str) -> str:
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return "/"


def _mounts(mountinfo: str, controller: str, kind: str) -> Iterator[tuple[str, str]]:
    """Where in the hierarchy each mount of it begins, and where it is mounted."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place, described = before.split(), after.split()
        if len(place) < 5 or len(described) < 3 or described[0] != kind:
            continue
        if not controller or controller in described[2].split(","):
            yield place[3], place[4]


def _ratio(quota: str, period: str) -> list[float]:
    quota_us, period_us = _number(quota), _number(period)
    return [quota_us / period_us] if quota_us and period_us else []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _field(path: Path, name: str) -> str:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return value
    return ""


_FRESH_S: Final = 1.0
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
    """What a process has touched of its memory, looked up once a second at most.

    With children, theirs counts too; what several of them share counts for each.
    """

    def __init__(self, *, has_children: bool = False) -> None:
        self._has_children = has_children
        self._process_id: int | None = None
        self._until_s = 0.0
        self._size_bytes = 0

    def of(self, process_id: int | None, now_s: float) -> int:
        """In bytes; 0 when the process is not there or nobody says."""
        if process_id != self._process_id or now_s >= self._until_s:
            self._process_id, self._until_s = process_id, now_s + _FRESH_S
            self._size_bytes = _resident_bytes(process_id, has_children=self._has_children)
        return self._size_bytes


def _resident_bytes(process_id: int | None, *, has_children: bool) -> int:
    try:
        if process_id is None:
            return 0
        process = psutil.Process(process_id)
        children = process.children(recursive=True) if has_children else []
        return sum(int(each.memory_info().rss) for each in (process, *children))
    except (psutil.Error, OSError):
        return 0  # it is gone, or this process has no file handle left to look at it
