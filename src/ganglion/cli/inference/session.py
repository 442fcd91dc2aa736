"""`ganglion session`: a token session of a running node, driven by hand."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion.cli.flags import MODEL
from ganglion.cli.remote.node_client import NODE_UNSET, NodeFlags
from ganglion.cli.terminal.console import prompt_lines, say, say_error
from ganglion.core.errors import GanglionError, ModelNotFound

if TYPE_CHECKING:
    from ganglion.cli.inference.session_repl import SessionRepl


def session(
    model: Annotated[
        str | None, Parameter(help="A model of the node (default: the one that is loaded).", group=MODEL)
    ] = None,
    /,
    *,
    steer: Annotated[
        list[str] | None,
        Parameter(
            help="A concept and its strength, as formal=1.5; may be repeated.", group=MODEL, negative=()
        ),
    ] = None,
    node: NodeFlags = NODE_UNSET,
) -> None:
    """Drive a token session of a running node."""
    from ganglion.cli.inference.session_repl import SessionRepl, steering_of
    from ganglion.client import Client

    name = model or _loaded(node)
    with Client(node.url, api_key=node.api_key) as client:
        repl = SessionRepl(client, name, steering_of(steer or ()))
        try:
            _hold(repl, name)
        finally:
            repl.close()


def _hold(repl: "SessionRepl", name: str) -> None:
    greeting = f"{name}: what you type is appended, /generate goes on from it, /help lists the rest"
    for line in prompt_lines(greeting):
        try:
            repl.run_line(line)
        except KeyboardInterrupt:
            say("\nstopped; what was shown stays in the session")
        except GanglionError as error:
            say_error(error.message, error.hint)


def _loaded(node: NodeFlags) -> str:
    """The model to use where none is named: the only one that is loaded."""
    models = node.client().models()
    loaded = [each.id for each in models if each.status == "loaded"] or [each.id for each in models]
    if not loaded:
        raise ModelNotFound("", hint="The node holds no model; name one.")
    return loaded[0]
