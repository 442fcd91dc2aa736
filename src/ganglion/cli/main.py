"""The `ganglion` command, and the exit status of each error.

Law: nothing heavy is imported here: a command's module waits until it is chosen, its engine until it runs.
"""

import os
import sys

from cyclopts import App, CycloptsError

from ganglion import __version__
from ganglion.cli import help_text
from ganglion.cli.command_groups import add_commands
from ganglion.cli.terminal.console import INTERRUPTED, say_error
from ganglion.core.errors import (
    GanglionError,
    InvalidValue,
    MissingParameter,
    NotAllowed,
    UnknownParameter,
    UnsupportedParameter,
)

# Errors in what was typed or configured, as against errors met on the way.
_USAGE_ERRORS = (InvalidValue, MissingParameter, NotAllowed, UnknownParameter, UnsupportedParameter)

app = App(
    name="ganglion",
    help="Language models on your own machines, behind every wire that clients already speak.",
    help_epilogue=help_text.ROOT,
    help_format="plaintext",
    version=f"ganglion {__version__}",
    suppress_keyboard_interrupt=False,
)
add_commands(app)


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        status = app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
    except CycloptsError as error:
        command = " ".join(["ganglion", *(error.command_chain or ())])
        say_error(str(error), f"{command} --help lists its arguments and flags.")
        return 2
    except GanglionError as error:
        say_error(str(error), error.hint)
        return 2 if isinstance(error, _USAGE_ERRORS) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout left; without this Python complains again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
