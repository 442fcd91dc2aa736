"""Error responses: what a handler raises becomes a status and an envelope in the wire's format."""

import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from ganglion.core.errors import GanglionError, InvalidRequest, MethodNotAllowed, RouteNotFound, ServerError
from ganglion.server.middleware.scope import header, request_id, route_path
from ganglion.wire import openapi
from ganglion.wire.dialects import error_format_of
from ganglion.wire.error_format import error_headers
from ganglion.wire.route_aliases import canonical_path, suggested_path

# A traceback holds every frame of its request, and frames hold the error: a circle around all that the
# request was, which only a full collection finds, and that is rare. A node's memory grew by these.


def drop_tracebacks(error: BaseException) -> None:
    """Let go of the frames that an error and its causes came through; for errors that nobody raises again."""
    pending: list[BaseException] = [error]
    while pending:
        each = pending.pop()
        if each.__traceback__ is not None:
            each.__traceback__ = None
            pending += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


_logger = logging.getLogger("ganglion.server")

_PATHS = frozenset(
    operation.path for surface in (openapi.NODE, openapi.GATEWAY) for operation in surface.operations
)


class ClientGone(Exception):
    """The client left, so that nothing can be answered."""


def error_response(error: GanglionError, scope: Scope, more: Mapping[str, str] | None = None) -> Response:
    """The response for an error, in the format of the wire that the path belongs to."""
    headers = error_headers(error) | dict(more or {})
    path = canonical_path(route_path(scope))
    errors = error_format_of(path, lambda name: header(scope, name.encode()) is not None)
    body = errors.encode(error, request_id(scope))
    return Response(body, errors.status_of(error), headers, "application/json")


def _route_not_found(scope: Scope) -> RouteNotFound:
    instead = suggested_path(route_path(scope), _PATHS)
    return RouteNotFound(
        f"There is no route {scope['method']} {scope['path'][:200]}.",
        hint=None if instead is None else f"Did you mean {instead}?",
    )


def response_to(error: Exception, scope: Scope) -> Response:
    """The response for whatever a handler raised; what is no error of ours is logged."""
    match error:
        case GanglionError():
            return error_response(error, scope)
        case HTTPException(status_code=404):
            return error_response(_route_not_found(scope), scope)
        case HTTPException(status_code=405):
            refusal = MethodNotAllowed(f"{scope['path'][:200]} does not answer {scope['method']}.")
            return error_response(refusal, scope, error.headers)
        case HTTPException():
            return error_response(InvalidRequest(error.detail), scope, error.headers)
        case _:
            _logger.error("a handler failed, request_id=%s", request_id(scope), exc_info=error)
            return error_response(ServerError("Something failed inside the server."), scope)
