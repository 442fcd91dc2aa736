"""`ganglion completion`: the script that teaches a shell our commands, flags and model names."""

import os
import sys
from pathlib import PurePath
from typing import Annotated, Final, Literal, get_args

from cyclopts import Parameter

from ganglion.core.errors import MissingParameter

_Shell = Literal["bash", "zsh", "fish"]
_SHELLS: Final[tuple[_Shell, ...]] = get_args(_Shell)


def completion(
    shell: Annotated[_Shell | None, Parameter(help="Which shell (default: that of $SHELL).")] = None, /
) -> None:
    """Print the completion script of a shell."""
    from ganglion.cli.main import app

    sys.stdout.write(app.generate_completion(prog_name="ganglion", shell=shell or _own_shell()))


def _own_shell() -> _Shell:
    name = PurePath(os.environ.get("SHELL", "")).name
    for shell in _SHELLS:
        if shell == name:
            return shell
    raise MissingParameter(
        f"There is no completion for the shell {name!r}.",
        param="shell",
        hint=f"Name one: ganglion completion {'|'.join(_SHELLS)}",
    )
