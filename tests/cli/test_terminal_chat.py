"""`ganglion chat` in a real terminal: typing, streaming, Ctrl-C and Ctrl-D."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "ganglion.cli.main", "chat", "--engine", "echo")
WAIT_S = 15.0
PERSON_S = 0.3
"""A signal between the prompt and the wait for a key is seen only with the next key; nobody is that fast."""


class Terminal:
    """A pseudo-terminal with the chat in it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            COMMAND,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            # Ctrl-C reaches only the processes of a controlling terminal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (no threads here)
        )
        os.close(slave)
        self._seen = ""

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until the pattern has been shown since the last one, and return what came up to its end."""
        deadline_s = time.monotonic() + WAIT_S
        while (match := re.search(pattern, self._seen, re.DOTALL)) is None:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(left_s, 0))
            assert ready, f"{pattern!r} was not shown; only {self._seen!r}"
            self._seen += os.read(self._master, 65536).decode()
        shown, self._seen = self._seen[: match.end()], self._seen[match.end() :]
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANGLION_")}
    opened = Terminal({**kept, "GANGLION_HOME": str(tmp_path), "TERM": "dumb", "NO_COLOR": "1"})
    yield opened
    opened.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.send("!echo unbounded delay=0.05\n")
    terminal.expect(r"\r\n echo echo")
    terminal.send("\x03")
    terminal.expect(r"\(stopped\)\r\n> ")
    terminal.send("still here\n")
    terminal.expect(r"still here\r\n.*still here\r\n> ")
    terminal.send("\x04")
    assert terminal.process.wait(10) == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(terminal: Terminal) -> None:
    terminal.expect("> ")
    time.sleep(PERSON_S)
    terminal.send("\x03")
    terminal.expect("Ctrl-D or /exit leaves\r\n> ")
    terminal.send("/exit\n")
    assert terminal.process.wait(10) == 0


def test_commands_and_errors_keep_the_conversation_going(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.send("/help\n")
    terminal.expect(r"/reset .*/system TEXT.*> ")
    terminal.send("/nonsense\n")
    terminal.expect(r"There is no /nonsense\..*> ")
    terminal.send("!echo fail_at=0 reply=x\n")
    terminal.expect(r"error: The echo was told to fail\.\r\n> ")
    terminal.send("/system be kind\n")
    terminal.expect("> ")
    terminal.send("fine\n")
    terminal.expect(r"fine\r\n.*fine\r\n> ")


def test_without_a_terminal_lines_are_answered_as_data(tmp_path: Path) -> None:
    environment = {**os.environ, "GANGLION_HOME": str(tmp_path)}
    lines = "one\n\ntwo words\n"
    done = subprocess.run(COMMAND, input=lines, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo words\n", "")
