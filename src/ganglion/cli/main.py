"""The `ganglion` command: which subcommand is meant, and how errors leave the program.

Law: nothing heavy is imported here: a command's module waits until it is chosen, its engine until it runs.
"""

import os
import sys

from cyclopts import App, CycloptsError

from ganglion import __version__
from ganglion.cli import keys_manual, manual, models_manual
from ganglion.cli.talk import say_error
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
    help_epilogue=manual.ROOT,
    help_format="plaintext",
    version=f"ganglion {__version__}",
    suppress_keyboard_interrupt=False,
)
app.command("ganglion.cli.serve:serve", help="Run a node: models behind HTTP.", help_epilogue=manual.SERVE)
app.command(
    "ganglion.cli.gateway:gateway",
    help="Run a gateway: many nodes as one server.",
    help_epilogue=manual.GATEWAY,
)
app.command("ganglion.cli.chat:chat", help="Talk to a model in this terminal.", help_epilogue=manual.CHAT)
app.command(
    "ganglion.cli.complete:complete", help="Continue a text and print it.", help_epilogue=manual.COMPLETE
)
app.command(
    "ganglion.cli.score:score",
    help="Say how likely a model finds a text.",
    help_epilogue=manual.SCORE,
)
app.command(
    "ganglion.cli.session:session",
    help="Drive a token session of a running node.",
    help_epilogue=manual.SESSION,
)
app.command("ganglion.cli.models:app", name="models", help="Find, fetch and hold models.")
app.command("ganglion.cli.concepts:app", name="concepts", help="Train, judge and share concept vectors.")
app.command("ganglion.cli.fleet:app", name="fleet", help="See and steer the nodes behind a gateway.")
app.command("ganglion.cli.keys:app", name="keys", help="Make, list and revoke the gateway's keys.")
app.command(
    "ganglion.cli.usage:usage",
    help="Show what keys, tenants and models used.",
    help_epilogue=keys_manual.USAGE,
)
app.command(
    "ganglion.cli.doctor:doctor",
    help="Check this machine and say what to do.",
    help_epilogue=manual.DOCTOR,
)
app.command(
    "ganglion.cli.completion:completion",
    help="Print the script that completes our commands in a shell.",
    help_epilogue=models_manual.COMPLETION,
)
app.command(
    "ganglion.cli.version:version", help="Print the versions of Ganglion and its engines.", help_epilogue=""
)


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        status = app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
    except CycloptsError as error:
        command = " ".join(["ganglion", *(error.command_chain or ())])
        say_error(str(error), f"{command} --help shows what can be said.")
        return 2
    except GanglionError as error:
        say_error(str(error), error.hint)
        return 2 if isinstance(error, _USAGE_ERRORS) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our stdout left; without this Python complains again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
