"""The limits of a child process that runs what strangers wrote."""

import os
import resource
import select
from pathlib import Path
from time import monotonic
from typing import IO


def read_exactly(stream: IO[bytes], size: int, until_s: float) -> bytes:
    """So many bytes; raises EOFError at the end of the stream, TimeoutError at that of the time."""
    data = bytearray()
    while len(data) < size:
        left_s = until_s - monotonic()
        if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
            raise TimeoutError
        more = os.read(stream.fileno(), size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


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
