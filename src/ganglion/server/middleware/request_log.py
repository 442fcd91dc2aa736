"""One id and one log line per request; never a prompt, never a key."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.server.gate import Gate
from ganglion.server.middleware.scope import REQUEST_ID as REQUEST_ID_KEY
from ganglion.server.middleware.scope import header
from ganglion.wire.headers import REQUEST_ID

server_logger = logging.getLogger("ganglion.server")

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
                server_logger.log(self._level, self._message, shown)


def unknown_field_log() -> LogOnce:
    """Logs fields that clients send and no wire knows."""
    return LogOnce("a client sent the unknown field %r", logging.DEBUG)


def ignored_field_log() -> LogOnce:
    """Logs what clients send and is ignored."""
    return LogOnce("a part of a request was ignored: %s", logging.WARNING)


logger = logging.getLogger("ganglion.request")

_SANE_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_PATH_SHOWN = 200
_CLIENT_GONE = 499
_POLLED = "/fleet/state"
"""Every gateway polls it, so that it is logged at DEBUG."""


class RequestLog:
    """Gives each request an id, sends it with the response, and logs how it went.

    `may_set_request_id` says whose own request id is used.
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
        scope[REQUEST_ID_KEY] = request_id
        status = _CLIENT_GONE

        async def with_request_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                encoded = request_id.encode()
                # Anthropic's SDKs look for the id under the second name.
                extra = [(REQUEST_ID, encoded), (b"request-id", encoded)]
                if self._gate.is_draining:
                    extra.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self._app(scope, receive, with_request_id)
        finally:
            level = logging.DEBUG if scope["path"] == _POLLED and status < 400 else logging.INFO
            if self._is_logged and logger.isEnabledFor(level):
                logger.log(
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
