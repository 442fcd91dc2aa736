"""Routes as an app, wrapped in what every request passes."""

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Scope

from ganglion.server.body_room import BodyRoom
from ganglion.server.drain import Gate
from ganglion.server.refusals import Refusals
from ganglion.server.request_log import RequestLog


def wrapped(
    routes: Sequence[BaseRoute],
    gate: Gate,
    *,
    identity: Callable[[ASGIApp], ASGIApp],
    max_body_bytes: int,
    may_name: Callable[[Scope], bool] = lambda scope: True,
    is_logged: bool = True,
) -> ASGIApp:
    """From the outside: each request is named and logged, refused in its wire's words, `identity` says
    whose it is, and its body is read once there is room; `may_name` says whose own name for a request is
    taken over. Not logged is what somebody before the app logs already."""
    router = BodyRoom(Router(list(routes), redirect_slashes=False), max_body_bytes)
    return RequestLog(Refusals(identity(router)), gate, may_name, is_logged=is_logged)
