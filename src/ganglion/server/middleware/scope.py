"""Readers of an ASGI scope: its headers, and the keys that our layers write for the layers below."""

from collections.abc import Callable

from starlette.types import Scope

from ganglion.server.middleware.principal import ANONYMOUS, Principal

REQUEST_ID = "ganglion.request_id"
PRINCIPAL = "ganglion.principal"
IDENTIFY = "ganglion.identify"
"""Keys in the scope: the id under which a request is logged, whose it is, and a call that says it anew."""
ABORT = "ganglion.abort"
"""The extension by which a connection can be cut without waiting for its unread bytes."""
WRITE_NOW = "ganglion.write_now"
"""The extension whose `write` takes part of a body that has begun, unless the client's connection is full,
and says whether it did. It leaves with this round of the event loop, or at a `flush`, which must precede
whatever goes through `send`: the end of the body, and all that may have to wait."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a header; `name` is lower case."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def is_anthropic(scope: Scope) -> bool:
    """Whether the client speaks Anthropic's API, by its own word."""
    return header(scope, b"anthropic-version") is not None


def route_path(scope: Scope) -> str:
    """The path as our own routes name it, wherever the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def request_id(scope: Scope) -> str:
    """The id under which this request is logged and answered."""
    return str(scope.get(REQUEST_ID, ""))


def principal(scope: Scope) -> Principal:
    """Whose request this is."""
    found: Principal = scope.get(PRINCIPAL, ANONYMOUS)
    return found


def current_principal(scope: Scope) -> Principal:
    """The principal by the keys that are valid now, for a connection that outlives its first request.

    Raises InvalidApiKey for a key that was revoked since.
    """
    identify: Callable[[], Principal] | None = scope.get(IDENTIFY)
    return principal(scope) if identify is None else identify()
