"""How much memory is left, and how much a process takes."""

from pathlib import Path

import psutil

CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Where a container's limit and use stand, in the two versions of the interface."""


def free_bytes() -> int:
    """What the machine has left, or the container if that is less."""
    free = int(psutil.virtual_memory().available)
    for limit_file, used_file in CGROUP_FILES:
        limit, used = _number(Path(limit_file)), _number(Path(used_file))
        if limit is not None and used is not None:
            free = min(free, max(limit - used, 0))
    return free


def resident_bytes(process_id: int | None) -> int:
    """What a process has touched of its memory; 0 when it is not there or nobody says."""
    try:
        return int(psutil.Process(process_id).memory_info().rss) if process_id is not None else 0
    except psutil.Error:
        return 0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
