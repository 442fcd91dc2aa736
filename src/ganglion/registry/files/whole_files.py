"""Small files, read and written whole."""

import os
import tempfile
from pathlib import Path

from ganglion.core.errors import InvalidValue


def read_text(
    path: Path, what: str = "", *, param: str | None = None, hint: str | None = None, limit_bytes: int = -1
) -> str:
    """The text of a file; raises InvalidValue, which calls it `what`."""
    name = f"{what} {path}".lstrip()
    try:
        with path.open("rb") as file:
            data = file.read(-1 if limit_bytes < 0 else limit_bytes + 1)
        if 0 <= limit_bytes < len(data):
            raise InvalidValue(f"{name} is larger than {limit_bytes} bytes.", param=param)
        return data.decode().replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or error
        raise InvalidValue(f"{name} could not be read: {reason}.", param=param, hint=hint) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the file and rename: a reader sees the old content or the new one, never a part of it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
