"""Errors as gRPC tells them: a status, the message, and the rest in trailing metadata.

`ganglion-code` is always there; `ganglion-param`, `ganglion-hint`, `ganglion-session-length` and
`retry-after` (seconds) where there is one. What is not printable ASCII is percent-encoded, and so is the
percent sign.
"""

from typing import Final
from urllib.parse import quote

import grpc

from ganglion.core.errors import GanglionError

# Clients refuse headers beyond 8 KiB by default, and one character may become twelve.
_SHOWN: Final = 400
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

Trailers = tuple[tuple[str, str], ...]


def code_of(error: GanglionError) -> grpc.StatusCode:
    """The status of an error."""
    return grpc.StatusCode[error.grpc]


def details_of(error: GanglionError) -> str:
    """The message for people."""
    return error.message[:_SHOWN].encode(errors="replace").decode()


def trailers_of(error: GanglionError) -> Trailers:
    """What goes with the status."""
    told: list[tuple[str, str]] = [("ganglion-code", error.code)]
    if error.param is not None:
        told.append(("ganglion-param", _ascii(error.param)))
    if error.hint is not None:
        told.append(("ganglion-hint", _ascii(error.hint)))
    length = error.extras.get("session_length")
    if length is not None:
        told.append(("ganglion-session-length", str(length)))
    if error.retry_after_s is not None:
        told.append(("retry-after", str(error.retry_after_s)))
    return tuple(told)


def _ascii(text: str) -> str:
    return quote(text[:_SHOWN], safe=_PLAIN, errors="replace")
