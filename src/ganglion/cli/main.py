"""The `ganglion` command: its subcommands, and the exit status of each error.

Law: nothing heavy is imported here: a command's module waits until it is chosen, its engine until it runs.
"""

import os
import sys

from cyclopts import App, CycloptsError

from ganglion import __version__
from ganglion.cli import help_text
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
app.command("ganglion.cli.serve:serve", help="Run a node: models behind HTTP.", help_epilogue=help_text.SERVE)
app.command(
    "ganglion.cli.gateway:gateway",
    help="Run a gateway: many nodes as one server.",
    help_epilogue=help_text.GATEWAY,
)
app.command(
    "ganglion.cli.inference.chat:chat", help="Talk to a model in this terminal.", help_epilogue=help_text.CHAT
)
app.command(
    "ganglion.cli.inference.complete:complete",
    help="Continue a text and print it.",
    help_epilogue=help_text.COMPLETE,
)
app.command(
    "ganglion.cli.inference.score:score",
    help="Say how likely a model finds a text.",
    help_epilogue=help_text.SCORE,
)
app.command(
    "ganglion.cli.inference.session:session",
    help="Drive a token session of a running node.",
    help_epilogue=help_text.SESSION,
)
app.command("ganglion.cli.command_groups:models_app", name="models", help="Find, fetch and hold models.")
app.command(
    "ganglion.cli.command_groups:engines_app", name="engines", help="See, build and install what computes."
)
app.command(
    "ganglion.cli.command_groups:concepts_app",
    name="concepts",
    help="Train, judge and share concept vectors.",
)
app.command(
    "ganglion.cli.command_groups:fleet_app", name="fleet", help="See and steer the nodes behind a gateway."
)
app.command(
    "ganglion.cli.command_groups:keys_app", name="keys", help="Make, list and revoke the gateway's keys."
)
app.command(
    "ganglion.cli.keys.usage:usage",
    help="Show what keys, tenants and models used.",
    help_epilogue=help_text.USAGE,
)
app.command(
    "ganglion.cli.system.doctor:doctor",
    help="Check this machine and say what to do.",
    help_epilogue=help_text.DOCTOR,
)
app.command(
    "ganglion.cli.system.completion:completion",
    help="Print the script that completes our commands in a shell.",
    help_epilogue=help_text.COMPLETION,
)
app.command(
    "ganglion.cli.system.version:version",
    help="Print the versions of Ganglion and its engines.",
    help_epilogue="",
)


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
