"""What our layers read from an ASGI scope and write into it for the layers below."""

from collections.abc import Callable, Iterable

from starlette.types import Scope

from ganglion.core.engine import ModelState
from ganglion.server.middleware.principal import ANONYMOUS, Principal
from ganglion.wire.headers import INTERNAL_PREFIX

_REQUEST_ID = "ganglion.request_id"
_PRINCIPAL = "ganglion.visit"
_IDENTIFY = "ganglion.judge"
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


def is_anthropic(scope: Scope) -> bool:
    """Whether a client says that it is one of Anthropic's API."""
    return header(scope, b"anthropic-version") is not None


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


def principal(scope: Scope) -> Principal:
    """Whose request this is, and what was said of it by somebody who is believed."""
    found: Principal = scope.get(_PRINCIPAL, ANONYMOUS)
    return found


def current_principal(scope: Scope) -> Principal:
    """The same by the keys that are valid at this moment, for a connection that outlives its first request.

    Raises InvalidApiKey for a key that was taken away since.
    """
    judge: Callable[[], Principal] | None = scope.get(_IDENTIFY)
    return principal(scope) if judge is None else judge()


def tenant(scope: Scope) -> str:
    """Whose request this is; empty when the server has no keys."""
    return principal(scope).tenant


def visible_models(scope: Scope, models: Iterable[ModelState]) -> tuple[ModelState, ...]:
    """Those of the models that whoever asks may use."""
    return principal(scope).visible(models)


def with_principal(scope: Scope, value: Principal, judge: Callable[[], Principal]) -> Scope:
    """The scope for the layers below: it says whose the request is, and no header of ours does any more.

    `judge` says it anew.
    """
    headers = scope["headers"]
    if any(name.startswith(INTERNAL_PREFIX) for name, _ in headers):
        headers = [(name, text) for name, text in headers if not name.startswith(INTERNAL_PREFIX)]
    return {**scope, "headers": headers, _PRINCIPAL: value, _IDENTIFY: judge}
