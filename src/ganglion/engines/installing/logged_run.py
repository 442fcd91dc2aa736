"""A program that takes long: its output goes to a log, and each line of it to whoever shows how far it is."""

import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TAIL_LINES: Final = 400
"""Of the output, for the message about a failure."""
_END_S: Final = 10.0
"""How long an interrupted program may take to end by itself."""

OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the program ended, and the end of what it said."""

    code: int
    lines: tuple[str, ...]
    log: Path

    @property
    def text(self) -> str:
        """The end of its output as one text."""
        return "\n".join(self.lines)


def run_logged(
    command: Sequence[str],
    log: Path,
    on_line: OnLine,
    *,
    environment: Mapping[str, str] | None = None,
    held: tuple[int, ...] = (),
) -> RunResult:
    """Run a program to its end; it keeps the descriptors in `held`, and is ended if we are interrupted."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with (
        log.open("ab") as sink,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            pass_fds=held,
        ) as process,
    ):
        assert process.stdout is not None
        sink.write(f"$ {' '.join(command)}\n".encode())
        try:
            for raw in process.stdout:
                sink.write(raw)
                line = raw.decode("utf-8", "replace").rstrip()
                tail.append(line)
                on_line(line)
            code = process.wait()
        finally:
            _end(process)
    return RunResult(code, tuple(tail), log)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
