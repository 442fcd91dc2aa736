"""Pictures that a command line names: read, recognised, and told in a line."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, media_type_of
from ganglion.core.errors import InvalidValue

STDIN: Final = "-"
_KINDS: Final = "PNG, JPEG, WebP, GIF and BMP are read."


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A file that begins like a picture; whether it is a whole one is found out where it is decoded."""

    name: str
    kind: str
    data: bytes

    def __str__(self) -> str:
        size = len(self.data)
        told = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{max(size >> 10, 1)} KiB"
        return f"{self.name}: {self.kind}, {told}"


def read_pictures(paths: Sequence[str]) -> list[PictureFile]:
    """The pictures of several paths, one of which may be - for stdin; raises InvalidValue."""
    if paths.count(STDIN) > 1:
        raise InvalidValue("Only one picture can come through stdin.", param="image")
    return [read_picture(path) for path in paths]


def read_picture(path: str) -> PictureFile:
    """The picture in a file, or - for stdin; raises InvalidValue where there is none."""
    if path == STDIN:
        name, data = "stdin", sys.stdin.buffer.read(MAX_ATTACHMENT_BYTES + 1)
    else:
        name, data = Path(path).name, _bytes_of(Path(path).expanduser())
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidValue(
            f"{name} is larger than {MAX_ATTACHMENT_BYTES >> 20} MiB.", param="image", hint="Save it smaller."
        )
    family, _, kind = (media_type_of(data) or "").partition("/")
    if family != "image":
        raise InvalidValue(f"{name} is not a picture.", param="image", hint=_KINDS)
    return PictureFile(name, "WebP" if kind == "webp" else kind.upper(), data)


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_ATTACHMENT_BYTES + 1)
    except FileNotFoundError:
        raise InvalidValue(
            f"There is no file {path}.", param="image", hint=f"Paths are read from {Path.cwd()}."
        ) from None
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read: {error.strerror}.", param="image") from None
