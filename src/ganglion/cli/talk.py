"""What the program says to people: on stderr, plain enough to read without colour."""

import sys


def say(line: str) -> None:
    """One line of talk."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 (the one place that talks)


def say_warning(message: str) -> None:
    """Something the operator should know, and that stops nothing."""
    say(f"warning: {message}")


def say_error(message: str, hint: str | None = None) -> None:
    """The error, a blank line, then what to do about it."""
    say(f"error: {message}")
    if hint:
        say(f"\nhint: {hint}")


def is_terminal() -> bool:
    """Whether a person is typing and reading."""
    return sys.stdin.isatty() and sys.stdout.isatty()
