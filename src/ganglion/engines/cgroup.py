"""What the control groups of this process allow it, in both versions of the interface.

Law: limits are hierarchical: every group from the process's own up to the mount counts, the tightest wins.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ganglion.core.machine import Memory

UNLIMITED_BYTES: Final = 2**60
"""The first version writes its largest number of whole pages where there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """The names that one version of the interface gives to limits, use, and the cache that can be dropped."""

    limits: tuple[str, ...]
    used: str
    droppable: str


MEMORY_V2: Final = MemoryFiles(("memory.max", "memory.high"), "memory.current", "inactive_file")
MEMORY_V1: Final = MemoryFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def allowed_memory(root: Path = Path("/")) -> Memory | None:
    """The tightest memory limit and what is left under the fullest one; None without a limit."""
    found = [
        *_limits(_groups(root, "", "cgroup2"), MEMORY_V2),
        *_limits(_groups(root, "memory", "cgroup"), MEMORY_V1),
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


def _limits(groups: Iterator[Path], files: MemoryFiles) -> Iterator[Memory]:
    for group in groups:
        limits = [number for name in files.limits if (number := _number(_text(group / name))) is not None]
        used = _number(_text(group / files.used))
        if not limits or used is None or min(limits) >= UNLIMITED_BYTES:
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
