"""Ganglion: language models on your own machines, behind every wire that clients already speak."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ganglion.cli.compose import open_engine
    from ganglion.client import (
        AsyncClient,
        Client,
        Disconnected,
        Done,
        GanglionError,
        Image,
        ImageAppended,
        Progress,
        SessionDivergence,
        Steer,
        TokenEvent,
    )
    from ganglion.server.mounted import Defaults, build_app

__all__ = [
    "AsyncClient",
    "Client",
    "Defaults",
    "Disconnected",
    "Done",
    "GanglionError",
    "Image",
    "ImageAppended",
    "Progress",
    "SessionDivergence",
    "Steer",
    "TokenEvent",
    "__version__",
    "build_app",
    "open_engine",
]
__version__ = "0.1.0"

_LAZY = {
    "build_app": "ganglion.server.mounted",
    "Defaults": "ganglion.server.mounted",
    "open_engine": "ganglion.cli.compose",
    **dict.fromkeys(
        ("AsyncClient", "Client", "Disconnected", "Done", "GanglionError", "Image", "ImageAppended"),
        "ganglion.client",
    ),
    **dict.fromkeys(("Progress", "SessionDivergence", "Steer", "TokenEvent"), "ganglion.client"),
}


def __getattr__(name: str) -> object:
    # Looked up when asked for: `import ganglion` itself stays as light as its version.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ganglion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
