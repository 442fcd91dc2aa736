"""The outermost door: every error that leaves a handler becomes a status and an envelope."""

import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.core.errors import GanglionError, InvalidRequest, MethodNotAllowed, RouteNotFound, ServerError
from ganglion.server.scope import request_id
from ganglion.wire import errors

logger = logging.getLogger("ganglion.server")


class ClientGone(Exception):
    """The client left; nobody is there to be told anything."""


def error_response(error: GanglionError, more: Mapping[str, str] | None = None) -> Response:
    """The whole response that tells an error."""
    headers = errors.headers(error) | dict(more or {})
    return Response(errors.envelope(error), error.status, headers, "application/json")


class Refusals:
    """Catches what the app raises and answers with it, as long as nothing has been sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def watched(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        # The router raises for what it cannot place only when told that somebody catches.
        scope["app"] = self
        try:
            await self._app(scope, receive, watched)
        except ClientGone:
            return
        except Exception as error:
            if is_started:
                raise
            await _response_to(error, scope)(scope, receive, send)


def _response_to(error: Exception, scope: Scope) -> Response:
    match error:
        case GanglionError():
            return error_response(error)
        case HTTPException(status_code=404):
            return error_response(
                RouteNotFound(f"There is no route {scope['method']} {scope['path'][:200]}.")
            )
        case HTTPException(status_code=405):
            refusal = MethodNotAllowed(f"{scope['path'][:200]} does not answer {scope['method']}.")
            return error_response(refusal, error.headers)
        case HTTPException():
            return error_response(InvalidRequest(error.detail), error.headers)
        case _:
            logger.error("a handler failed, request_id=%s", request_id(scope), exc_info=error)
            return error_response(ServerError("Something failed inside the server."))
