"""An error's trailing metadata in a gRPC call, written by the server and read by the client.

`ganglion-code` is always there; the others where the error has one. What is not printable ASCII is
percent-encoded, and so is the percent sign.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from ganglion.core.errors import GanglionError, class_of, rebuild

CODE: Final = "ganglion-code"
_SESSION_LENGTH: Final = "ganglion-session-length"
_HINT: Final = "ganglion-hint"
_PARAM: Final = "ganglion-param"
_RETRY_AFTER: Final = "retry-after"

# Clients refuse headers beyond 8 KiB by default, and one character may become twelve.
_SHOWN: Final = 400
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def encode_metadata(error: GanglionError) -> tuple[tuple[str, str], ...]:
    """The metadata that goes with an error's status."""
    length = error.extras.get("session_length")
    values = {
        CODE: error.code,
        _PARAM: None if error.param is None else _quoted(error.param),
        _HINT: None if error.hint is None else _quoted(error.hint),
        _SESSION_LENGTH: None if length is None else str(length),
        _RETRY_AFTER: None if error.retry_after_s is None else str(error.retry_after_s),
    }
    return tuple((name, value) for name, value in values.items() if value is not None)


def encode_details(error: GanglionError) -> str:
    """The message that goes with an error's status."""
    return error.message[:_SHOWN].encode(errors="replace").decode()


def decode_metadata(
    metadata: Mapping[str, str], details: str, otherwise: type[GanglionError]
) -> GanglionError:
    """The error whose code the metadata names; one of a later version becomes an `otherwise`."""
    code = metadata[CODE]
    length, retry_after = metadata.get(_SESSION_LENGTH, ""), metadata.get(_RETRY_AFTER, "")
    error = rebuild(
        class_of(code) or otherwise,
        details,
        param=_unquoted(metadata.get(_PARAM)),
        hint=_unquoted(metadata.get(_HINT)),
        extras={"session_length": int(length)} if length.isdecimal() else None,
        retry_after_s=int(retry_after) if retry_after.isdecimal() else None,
    )
    error.code = code
    return error


def _quoted(text: str) -> str:
    return quote(text[:_SHOWN], safe=_PLAIN, errors="replace")


def _unquoted(value: str | None) -> str | None:
    return None if value is None else unquote(value)
