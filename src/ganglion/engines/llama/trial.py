"""Tries grammars in a child process that can be killed, before the worker compiles them itself.

Law: a grammar may take `CPU_S` of processor time, `WALL_S` of waiting and `MEMORY_BYTES`, and one that takes
more costs its own request an error and the sequences that run nothing. llguidance bounds most of what it does
and not all: some schemas of a few kilobytes compile for minutes, and a native call cannot be interrupted.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from time import monotonic
from typing import IO, Final

from ganglion.core.errors import EngineFailed
from ganglion.engines.llama.trial_limits import LENGTH_BYTES, READY
from ganglion.engines.pipe import read_exactly

CPU_S: Final = 0.7
WALL_S: Final = 1.4
"""More than the processor time, since the child gives way to sequences that run."""
STARTUP_S: Final = 30.0
MEMORY_BYTES: Final = 512 * 2**20

TOO_LONG: Final = "it takes too long to compile"
TOO_LARGE: Final = "it takes too much memory to compile"

ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


class Trial:
    """One child, started when it is first needed and after each that had to be killed. For one thread."""

    def __init__(self, vocabulary_size: int, end_names: list[str]) -> None:
        self._arguments = [str(MEMORY_BYTES), str(CPU_S), str(vocabulary_size), *end_names]
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def verdict(self, grammar: str) -> str | None:
        """What is wrong with a grammar, in words for its author, or None."""
        child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        if not self._is_ready:
            self._await_ready(child.stdout)
        data = grammar.encode()
        until_s = monotonic() + WALL_S
        try:
            child.stdin.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            child.stdin.flush()
            length = int.from_bytes(read_exactly(child.stdout, LENGTH_BYTES, until_s), "big")
            error = read_exactly(child.stdout, length, until_s)
        except TimeoutError:
            self._start_anew()
            return TOO_LONG
        except (EOFError, BrokenPipeError):
            is_alarm = child.wait() == -signal.SIGPROF
            self._start_anew()
            return TOO_LONG if is_alarm else TOO_LARGE
        return error.decode("utf-8", "replace") or None

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _start_anew(self) -> None:
        """Begin the next child now, so that the next grammar finds it ready."""
        self.close()
        with suppress(EngineFailed):  # whoever comes next tries again
            self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "ganglion.engines.llama.trial_child", *self._arguments]
        self._is_ready = False
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # an allocation that failed says so there, and we tell the client
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )
        except OSError as error:
            raise EngineFailed(f"The process that tries grammars could not be started: {error}.") from error
        return self._child

    def _await_ready(self, stream: IO[bytes]) -> None:
        try:
            self._is_ready = read_exactly(stream, len(READY), monotonic() + STARTUP_S) == READY
        except (TimeoutError, EOFError):
            self.close()
            raise EngineFailed("The process that tries grammars did not start.") from None
