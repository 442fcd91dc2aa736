"""`ganglion completion`: the script that teaches a shell our commands, flags and model names."""

import os
import sys
from pathlib import PurePath
from typing import Annotated, Final, Literal, get_args

from cyclopts import Parameter

from ganglion.core.errors import MissingParameter

Shell = Literal["bash", "zsh", "fish"]
SHELLS: Final[tuple[Shell, ...]] = get_args(Shell)


def completion(
    shell: Annotated[Shell | None, Parameter(help="Which shell (default: that of $SHELL).")] = None, /
) -> None:
    """Print the completion script of a shell."""
    from ganglion.cli.main import app

    sys.stdout.write(app.generate_completion(prog_name="ganglion", shell=shell or _own_shell()))


def _own_shell() -> Shell:
    name = PurePath(os.environ.get("SHELL", "")).name
    for shell in SHELLS:
        if shell == name:
            return shell
    raise MissingParameter(
        f"There is no completion for the shell {name!r}.",
        param="shell",
        hint=f"Name one: ganglion completion {'|'.join(SHELLS)}",
    )
