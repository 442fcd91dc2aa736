"""The parent's side of every child process: how it is started, asked, limited and ended.

Law: a child imports nothing from the working directory, and unless it is given the whole environment it sees
none of the operator's secrets, which travel there. A child that did not answer, for whatever reason, is ended
by whoever asked it: what it would still answer belongs to nobody.

A worker speaks through a socket of its own (`supervision/`), and takes its command, its environment and the
words for its end from here.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, Final

from ganglion.engines.child_main import LENGTH_PREFIX, READY

# What Python and a template's dates need; everything else may be a secret.
_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of one child process; 0 is none."""

    wall_s: float
    """How long its parent waits for one answer."""
    start_s: float = 30.0
    """How long it may take until it is ready: an import on a machine whose cores are all busy decoding."""
    cpu_s: float = 0.0
    """Processor time for one answer: what others do to this machine is not the answer's fault."""
    memory_bytes: int = 0
    """What it may allocate once it is ready."""
    max_frame_bytes: int = 256 * 2**20
    """The longest frame that it may send."""
    niceness: int = 0
    has_environment: bool = False
    """Whether it is given the whole environment."""


class ChildDied(Exception):
    """The child ended before it answered; `code` is its exit code, or minus the signal that killed it."""

    def __init__(self, code: int | None) -> None:
        """`code` is None where it never was a process, or does not end."""
        super().__init__(code)
        self.code = code


class ChildNotStarted(ChildDied):
    """There was no process for the child, or it ended or took too long before it was ready."""


def command(
    module: str, *arguments: str, limits: ChildLimits | None = None, python: str = sys.executable
) -> list[str]:
    """The command line of a Python module as a child; with limits, one that serves frames."""
    limited = () if limits is None else (limits.memory_bytes, limits.cpu_s, limits.niceness)
    return [python, "-P", "-m", module, *map(str, limited), *arguments]


def environment(limits: ChildLimits) -> dict[str, str] | None:
    """The environment of a child, None for the parent's own."""
    if limits.has_environment:
        return None
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def describe_exit(code: int | None) -> str:
    """An exit code in words that follow "the process"."""
    if code is None:
        return "did not start"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def spawn(module: str, *arguments: str, limits: ChildLimits, stderr: IO[bytes] | None = None) -> "Child":
    """Start a child that one thread asks; raises ChildNotStarted. Without a file, its stderr is dropped."""
    try:
        process = subprocess.Popen(
            command(module, *arguments, limits=limits),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if stderr is None else stderr,
            env=environment(limits),
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
    except OSError as error:
        raise ChildNotStarted(None) from error
    return Child(process, limits)


class Child:
    """A child that one thread asks, and starts to wait for only when it asks."""

    def __init__(self, process: subprocess.Popen[bytes], limits: ChildLimits) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._limits = limits
        self._is_ready = False

    def ask(self, body: bytes) -> bytes:
        """The first frame that answers a frame; raises ChildNotStarted, ChildDied and TimeoutError."""
        if not self._is_ready:
            self._wait_until_ready()
        with suppress(BrokenPipeError):  # how it ended is found out below
            self._stdin.write(LENGTH_PREFIX.pack(len(body)))
            left = memoryview(body)
            while left:
                left = left[self._stdin.write(left) :]
        return self.receive(self._limits.wall_s)

    def receive(self, wall_s: float) -> bytes:
        """The next frame of an answer that has several; raises ChildDied and TimeoutError."""
        until_s = monotonic() + wall_s
        length = LENGTH_PREFIX.unpack(self._read(LENGTH_PREFIX.size, until_s))[0]
        if length > self._limits.max_frame_bytes:
            raise ChildDied(None)
        return self._read(length, until_s)

    def close(self) -> int:
        """End the child and wait for that; returns its exit code."""
        self._process.kill()
        self._stdin.close()
        self._stdout.close()
        return self._process.wait()

    def _wait_until_ready(self) -> None:
        try:
            self._is_ready = self._read(len(READY), monotonic() + self._limits.start_s) == READY
        except TimeoutError:
            raise ChildNotStarted(None) from None
        except ChildDied as death:
            raise ChildNotStarted(death.code) from None

    def _read(self, size: int, until_s: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left_s = until_s - monotonic()
            if left_s <= 0 or not select.select([self._stdout], [], [], left_s)[0]:
                raise TimeoutError
            more = os.read(self._stdout.fileno(), size - len(data))
            if not more:
                raise ChildDied(self._process.wait())
            data += more
        return bytes(data)
