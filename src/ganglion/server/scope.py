"""What our layers read from an ASGI scope and write into it for the layers below."""

from starlette.types import Scope

_REQUEST_ID = "ganglion.request_id"
_TENANT = "ganglion.tenant"
ABORT = "ganglion.abort"
"""The extension by which a connection can be cut without waiting for its unread bytes."""


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Every value of a header, in order; `name` is lower case."""
    return [value for key, value in scope["headers"] if key == name]


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a header; `name` is lower case."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def is_on(scope: Scope, name: bytes) -> bool:
    """Whether a header asks for something by the value 1."""
    return header(scope, name) == b"1"


def route_path(scope: Scope) -> str:
    """The path as our own routes name it, wherever the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def request_id(scope: Scope) -> str:
    """The id under which this request is logged and answered."""
    return str(scope.get(_REQUEST_ID, ""))


def set_request_id(scope: Scope, value: str) -> None:
    """Write the id for the layers below."""
    scope[_REQUEST_ID] = value


def tenant(scope: Scope) -> str:
    """Whose request this is; empty when the server has no keys."""
    return str(scope.get(_TENANT, ""))


def set_tenant(scope: Scope, value: str) -> None:
    """Write the tenant for the layers below."""
    scope[_TENANT] = value
