"""The limits of a child process that runs what strangers wrote."""

import resource
from pathlib import Path


def confine(memory_bytes: int) -> None:
    """Limit what may be allocated on top of what this process holds now, and leave no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if not statm.exists():  # only Linux says how large we are and honours the limit
        return
    base_bytes = int(statm.read_text().split()[0]) * resource.getpagesize()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    limit = base_bytes + memory_bytes
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
