"""Lines that a person types, or a program sends, until either has had enough."""

from collections.abc import Iterator
from contextlib import suppress

from ganglion.cli.talk import is_terminal, say


def typed_lines(greeting: str) -> Iterator[str]:
    """Every line until /exit or the end; Ctrl-C between lines says how to leave."""
    prompt = "> " if is_terminal() else ""
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
