"""The child's side of every child process: its limits, its framing, and the loop that answers frames.

Law: a frame is its length in four bytes, little-endian, and its body. A child ends when its parent closes the
other end, leaves no core file, and ignores Ctrl-C, which is the parent's to handle.

It imports little, because every child that must be killed costs a new start: no asyncio, no subprocess.
"""

import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final

LENGTH_PREFIX: Final = struct.Struct("<I")
READY: Final = b"\x06"
"""The first byte that a child writes, once it can be asked."""

_STANDARD_STREAMS: Final = 3
"""The descriptors that every process has: as a limit, there is none for anything else."""

Answer = Callable[[bytes], Iterable[bytes]]
"""The frames that answer one frame."""


def serve(prepare: Callable[[list[str]], Answer], *, is_sealed: bool = False) -> None:
    """Answer each frame on stdin with frames on stdout until stdin ends.

    `prepare` is given the arguments of the command, and what it allocates is on top of the memory limit. An
    answer that takes more processor time than it may ends the process. A sealed child opens no file and no
    socket once it is prepared, so that it must have imported everything by then.
    """
    memory_bytes, cpu_s, niceness = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    os.nice(niceness)
    answer = prepare(sys.argv[4:])
    confine(memory_bytes)
    if is_sealed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_STANDARD_STREAMS, _STANDARD_STREAMS))
    try:
        _answer_frames(answer, sys.stdin.buffer, sys.stdout.buffer, cpu_s)
    except BrokenPipeError:
        # The parent is gone; an ordinary exit would flush stdout and complain about it on stderr.
        os._exit(0)


def confine(memory_bytes: int = 0) -> None:
    """Limit what this process may allocate on top of what it holds now, unless it is 0, and its core file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if not memory_bytes or not statm.exists():  # only Linux says how large we are and honours the limit
        return
    base_bytes = int(statm.read_text().split()[0]) * resource.getpagesize()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    limit = base_bytes + memory_bytes
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer_frames(answer: Answer, source: BinaryIO, sink: BinaryIO, cpu_s: float) -> None:
    sink.write(READY)
    sink.flush()
    while prefix := source.read(LENGTH_PREFIX.size):
        body = source.read(LENGTH_PREFIX.unpack(prefix)[0])
        # Nobody handles it, so it ends the process even inside one endless native call.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        for reply in answer(body):
            sink.write(LENGTH_PREFIX.pack(len(reply)))
            sink.write(reply)
            sink.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)
