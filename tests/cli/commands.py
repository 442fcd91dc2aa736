"""The command line in processes of its own, with a home and stores that nothing else shares."""

import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

GANGLION = (sys.executable, "-m", "ganglion.cli.main")
HIDDEN = ("GANGLION_", "HF_", "HUGGING", "OLLAMA", "XDG_")


def fresh_environment(folder: Path, **settings: str) -> dict[str, str]:
    """A machine that has nothing but the embedded model."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    return {
        **kept,
        "HOME": str(folder / "user"),
        "GANGLION_HOME": str(folder / "home"),
        "HF_HOME": str(folder / "hf"),
        "NO_PROXY": "127.0.0.1,localhost",
        "COLUMNS": "120",
        "NO_COLOR": "1",
        **settings,
    }


Done = subprocess.CompletedProcess[str]


def run(environment: dict[str, str], *arguments: str, timeout_s: float = 30) -> Done:
    """One command without a terminal."""
    return subprocess.run(
        [*GANGLION, *arguments],
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def data(environment: dict[str, str], *arguments: str) -> Any:
    """What a command that must succeed prints with --json."""
    done = run(environment, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(
    environment: dict[str, str], *arguments: str, status: int = 1, timeout_s: float = 30
) -> tuple[str, str]:
    """The error and the hint of a command that must fail."""
    done = run(environment, *arguments, timeout_s=timeout_s)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    error, blank, hint = done.stderr.splitlines()[-3:]
    assert error.startswith("error: ")
    assert blank == ""
    assert hint.startswith("hint: ")
    return error, hint


def in_terminal(
    environment: dict[str, str], *arguments: str, typed: bytes = b"", ask: bytes = b"\0"
) -> tuple[int, str, str]:
    """One command whose stdin and stderr are a terminal: its status, stdout and what the terminal showed.

    `typed` is entered once `ask` was shown.
    """
    ours, theirs = pty.openpty()
    shown = bytearray()

    def watch() -> None:
        with suppress(OSError):
            while more := os.read(ours, 4096):
                shown.extend(more)
                if ask in more:
                    os.write(ours, typed)

    with subprocess.Popen(
        [*GANGLION, *arguments],
        env=environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout is not None
        stdout = process.stdout.read()
        status = process.wait(20)
        watcher.join(5)
    os.close(ours)
    return status, stdout, shown.decode(errors="replace")
