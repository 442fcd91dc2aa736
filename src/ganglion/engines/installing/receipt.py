"""What a finished engine says of itself, in a file that is written last: without one a folder is none."""

from pathlib import Path
from typing import Final, TypeVar

import msgspec

_RECEIPT: Final = "ganglion.json"
_T = TypeVar("_T", bound=msgspec.Struct)


class Findings(msgspec.Struct, frozen=True):
    """What an engine's own Python found when it imported the engine."""

    version: str
    python: str
    platform: str = ""
    """What it would compute on: `cpu`, `cuda`, …; empty where it does not know."""
    torch: str | None = None
    cuda: str | None = None
    """The version of CUDA that it was built for."""
    devices: tuple[str, ...] = ()
    problem: str | None = None


class EnvironmentReceipt(msgspec.Struct, frozen=True):
    """An environment that was installed, and that imported its engine afterwards."""

    name: str
    flavour: str
    digest: str
    """Of the lock file."""
    found: Findings


def folder_behind(link: Path) -> Path | None:
    """The folder that an engine's link points at; None where there is no link, or nothing at its end."""
    return link.resolve() if link.is_dir() else None


def read_receipt(folder: Path | None, kind: type[_T]) -> _T | None:
    """What a finished folder says of itself; None for any other."""
    if folder is None:
        return None
    try:
        return msgspec.json.decode((folder / _RECEIPT).read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_receipt(folder: Path, receipt: msgspec.Struct) -> None:
    """Say that a folder is finished: the last thing that is written there."""
    draft = folder / f".{_RECEIPT}"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(receipt), indent=2))
    draft.replace(folder / _RECEIPT)
