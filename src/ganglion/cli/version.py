"""`ganglion version`: what runs here."""

import platform
import sys
from contextlib import suppress

from ganglion import __version__

LIBRARIES = ("xllamacpp", "starlette", "uvicorn")


def version() -> None:
    """Print the versions of Ganglion, Python and the libraries underneath."""
    lines = [f"ganglion {__version__}", f"python {platform.python_version()}"]
    lines += [f"{name} {number}" for name, number in libraries()]
    sys.stdout.write("\n".join(lines) + "\n")


def libraries() -> tuple[tuple[str, str], ...]:
    """The installed libraries that answers depend on, with their versions; nothing is imported."""
    from importlib import metadata

    found: list[tuple[str, str]] = []
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return tuple(found)
