"""The outermost layer: one id, one log line and, where a handler raises, one error response per request.

Law: a log line never holds a prompt or a key.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.server.gate import Gate
from ganglion.server.middleware.errors import ClientGone, drop_tracebacks, response_to
from ganglion.server.middleware.scope import REQUEST_ID as REQUEST_ID_KEY
from ganglion.server.middleware.scope import header
from ganglion.wire.headers import REQUEST_ID

_server_logger = logging.getLogger("ganglion.server")

# The texts hold names that clients choose: remember enough for every real one, and no more.
_REMEMBERED = 1024
_SHOWN = 160


class LogOnce:
    """Logs each distinct text once; `message` has one placeholder for it."""

    def __init__(self, message: str, level: int) -> None:
        self._message = message
        self._level = level
        self._logged: set[str] = set()

    def log(self, texts: Iterable[str]) -> None:
        """Log those that were not logged yet."""
        for text in texts:
            shown = text[:_SHOWN]
            if shown not in self._logged and len(self._logged) < _REMEMBERED:
                self._logged.add(shown)
                _server_logger.log(self._level, self._message, shown)


def unknown_field_log() -> LogOnce:
    """Logs fields that clients send and no wire knows."""
    return LogOnce("a client sent the unknown field %r", logging.DEBUG)


def ignored_field_log() -> LogOnce:
    """Logs what clients send and is ignored."""
    return LogOnce("a part of a request was ignored: %s", logging.WARNING)


_logger = logging.getLogger("ganglion.request")

_SANE_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_PATH_SHOWN = 200
_CLIENT_GONE = 499
_POLLED = "/fleet/state"
"""Every gateway polls it, so that it is logged at DEBUG."""


class RequestLog:
    """Gives each request an id, answers with the errors that the app raises, and logs how it went.

    Once a response has begun, an error is raised on: the server cuts the connection. `may_set_request_id`
    says whose own request id is used.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        may_set_request_id: Callable[[Scope], bool] = lambda scope: True,
        *,
        is_logged: bool = True,
    ) -> None:
        self._app = app
        self._gate = gate
        self._may_set_request_id = may_set_request_id
        self._is_logged = is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        brought = header(scope, REQUEST_ID)
        request_id = request_id_of(brought if brought and self._may_set_request_id(scope) else None)
        # The router raises for unknown routes only when the scope names an app. It is set on a copy:
        # mounted in another app, the scope is that one's too.
        scope = {**scope, REQUEST_ID_KEY: request_id, "app": self}
        status = _CLIENT_GONE
        is_started = False

        async def with_request_id(message: Message) -> None:
            nonlocal status, is_started
            if message["type"] == "http.response.start":
                status, is_started = message["status"], True
                encoded = request_id.encode()
                # Anthropic's SDKs look for the id under the second name.
                extra = [(REQUEST_ID, encoded), (b"request-id", encoded)]
                if self._gate.is_draining:
                    extra.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self._app(scope, receive, with_request_id)
        except ClientGone:
            pass
        except Exception as error:
            if is_started:
                raise
            response = response_to(error, scope)
            drop_tracebacks(error)
            await response(scope, receive, with_request_id)
        finally:
            level = logging.DEBUG if scope["path"] == _POLLED and status < 400 else logging.INFO
            if self._is_logged and _logger.isEnabledFor(level):
                _logger.log(
                    level,
                    "method=%s path=%s status=%d duration_ms=%.1f request_id=%s",
                    scope["method"],
                    quote(scope["path"][:_PATH_SHOWN]),
                    status,
                    (time.monotonic() - began_s) * 1000,
                    request_id,
                )


def request_id_of(value: bytes | None) -> str:
    """The caller's own request id where it is a sane one, else a new one."""
    if value is None or not _SANE_ID.fullmatch(value):
        return uuid.uuid4().hex
    return value.decode()
