"""`ganglion version`: the versions of Ganglion and its libraries."""

import os
import platform
import sys
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter

from ganglion import __version__

_LIBRARIES = ("xllamacpp", "starlette", "uvicorn")


def version(
    *, json: Annotated[bool, Parameter(help="Print one JSON object instead.", negative=())] = False
) -> None:
    """Print the versions of Ganglion, Python and the libraries underneath."""
    import msgspec

    versions = {"ganglion": __version__, "python": platform.python_version(), **dict(libraries())}
    if json:
        sys.stdout.write(msgspec.json.encode(versions).decode() + "\n")
    else:
        sys.stdout.writelines(f"{name} {number}\n" for name, number in versions.items())


def libraries() -> tuple[tuple[str, str], ...]:
    """The installed libraries and engines that answers depend on, with their versions; none is imported."""
    from importlib import metadata

    from ganglion.engines.vllm.installed import NAME, python_of, version_of

    found: list[tuple[str, str]] = []
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    vllm = version_of(python_of(None, os.environ))
    return tuple(found) if vllm is None else (*found, (NAME, vllm))
