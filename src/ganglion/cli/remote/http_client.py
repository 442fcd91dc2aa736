"""HTTP calls of commands to a running server of ours, with the standard library alone."""

import http.client
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from ganglion.core.errors import (
    GanglionError,
    InvalidApiKey,
    InvalidValue,
    RouteNotFound,
    ServerError,
    UpstreamUnavailable,
)
from ganglion.wire.openai_errors import ErrorEnvelope

_Answer = TypeVar("_Answer")

_TIMEOUT_S: Final = 10.0
_BODY_LIMIT: Final = 16 << 20
_LINE_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The kind of server that a command talks to, and how another address is given."""

    noun: str
    default_url: str
    flag: str
    variable: str
    start: str
    """The command that starts one."""


class HttpCaller:
    """One server; every call is a connection of its own."""

    def __init__(self, server: ServerKind, url: str, api_key: str | None) -> None:
        address = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = address.port
        except ValueError:
            port = -1
        if address.scheme not in ("http", "https") or not address.hostname or port == -1:
            raise InvalidValue(
                f"{url!r} is not the address of a {server.noun}.",
                param=server.flag.removeprefix("--"),
                hint=f"An address looks like {server.default_url}.",
            )
        self.url = f"{address.scheme}://{address.netloc}{address.path}".rstrip("/")
        self._server = server
        self._is_secure = address.scheme == "https"
        self._host, self._port, self._path = address.hostname, port, address.path.rstrip("/")
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    def ask(
        self,
        method: str,
        path: str,
        kind: type[_Answer],
        body: msgspec.Struct | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> _Answer:
        """The whole body of a response; raises the server's error, or why it could not be reached."""
        with self._answer(method, path, timeout_s, body) as response:
            return self.decoded(response.read(_BODY_LIMIT), kind)

    def events(self, path: str, body: msgspec.Struct, silence_s: float) -> Iterator[tuple[str, bytes]]:
        """The named events of a stream as they come; one called `error` is raised."""
        accept = {"accept": "text/event-stream"}
        with self._answer("POST", path, silence_s, body, accept) as response:
            for event, data in _events(_lines(response, self.url)):
                if event == "error":
                    raise self._error(200, data)
                yield event, data

    def decoded(self, data: bytes, kind: type[_Answer]) -> _Answer:
        """The decoded response; raises ServerError where it has another shape."""
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise self._not_ganglion() from error

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: msgspec.Struct | None = None,
        headers: dict[str, str] | None = None,
    ) -> Generator[http.client.HTTPResponse]:
        connection = self._connection()
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            content = None if body is None else msgspec.json.encode(body)
            typed = {} if body is None else {"content-type": "application/json"}
            connection.request(
                method, self._path + path, content, {**self._headers, **typed, **(headers or {})}
            )
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise self._error(response.status, response.read(_BODY_LIMIT))
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=context)

    def _error(self, status: int, body: bytes) -> GanglionError:
        try:
            refusal = msgspec.json.decode(body, type=ErrorEnvelope).error
        except msgspec.MsgspecError:
            return self._not_ganglion()
        if refusal.code == RouteNotFound.code:
            return self._not_ganglion()
        if status == InvalidApiKey.status:
            return InvalidApiKey(refusal.message, hint="Give a key with --api-key, or in GANGLION_API_KEY.")
        # Of one class whatever its code: the exit status tells a server's refusal from a mistyped command.
        return ServerError(refusal.message)

    def _not_ganglion(self) -> ServerError:
        server = self._server
        return ServerError(
            f"What answers at {self.url} is not a Ganglion {server.noun}.",
            hint=f"Name the {server.noun} with {server.flag} or {server.variable}, "
            f"or start one with `{server.start}`.",
        )

    def _unreachable(self, error: Exception) -> UpstreamUnavailable:
        if isinstance(error, TimeoutError):
            reason = "it did not answer in time"
        elif isinstance(error, OSError):
            reason = error.strerror or str(error)
        else:
            reason = f"what answers there is no web server ({type(error).__name__})"
        server = self._server
        return UpstreamUnavailable(
            f"No {server.noun} at {self.url}: {reason}.",
            hint=f"Start one with `{server.start}`, or name another with {server.flag} or {server.variable}.",
        )


def _lines(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    while line := response.readline(_LINE_LIMIT):
        if not line.endswith(b"\n"):
            raise ServerError(f"{url} sent a line that has no end.")
        yield line[:-1]


def _events(lines: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Named server-sent events, each with one line of data, as our servers write them."""
    event, data = "", b""
    for line in lines:
        if line.startswith(b"event: "):
            event = line.removeprefix(b"event: ").decode(errors="replace")
        elif line.startswith(b"data: "):
            data = line.removeprefix(b"data: ")
        elif not line and data:
            yield event, data
            event, data = "", b""
