"""Messages to people: on stderr, and readable without colour."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_LOGPROB_COLOURS: Final = ((-0.5, "green"), (-2.0, "cyan"), (-5.0, "yellow"), (float("-inf"), "red"))
"""From which logprob on a token has which colour."""
_UNSCORED: Final = "dim"
INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as shells expect it."""


def colour_of(logprob: float | None) -> str:
    """The style of a token; None is one without a logprob."""
    if logprob is None:
        return _UNSCORED
    return next(style for least, style in _LOGPROB_COLOURS if logprob >= least)


def legend() -> tuple[tuple[str, str], ...]:
    """The meaning of each colour, with its style."""
    least, most = (
        [f"{bound:g}" for bound, _ in _LOGPROB_COLOURS[:-1]],
        [style for _, style in _LOGPROB_COLOURS],
    )
    words = [f"from {bound}" for bound in least] + [f"below {least[-1]}"]
    return tuple(zip(words, most, strict=True))


def visible(text: str) -> str:
    """The text without control characters, but for line breaks and tabs."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}" for sign in text)


def say(line: str) -> None:
    """Write one line to stderr."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 (the one place that talks)


def say_warning(message: str) -> None:
    """Warn about something that stops nothing."""
    say(f"warning: {message}")


def say_error(message: str, hint: str | None = None) -> None:
    """The error, a blank line, then what to do about it."""
    say(f"error: {message}")
    if hint:
        say(f"\nhint: {hint}")


def prompt_lines(greeting: str) -> Iterator[str]:
    """Every line until /exit or the end; Ctrl-C between lines says how to leave."""
    prompt = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    if prompt:
        with suppress(ImportError):
            import readline  # noqa: F401 (its import gives input() editing and history)
        say(greeting)
    while True:
        try:
            line = input(prompt)
        except EOFError:
            if prompt:
                say("")
            return
        except KeyboardInterrupt:
            say("\nCtrl-D or /exit leaves")
            continue
        if line.strip() == "/exit":
            return
        yield line
