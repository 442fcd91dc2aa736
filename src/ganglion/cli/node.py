"""A running node, as commands talk to it: management and scores, with the standard library alone."""

import http.client
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from cyclopts import Group, Parameter

from ganglion.core.engine import LoadProgress
from ganglion.core.errors import GanglionError, InvalidApiKey, InvalidValue, ServerError
from ganglion.wire.errors import ErrorEnvelope
from ganglion.wire.health import Health
from ganglion.wire.management import HeldModel, LoadBody, Loaded, UnloadBody
from ganglion.wire.score import ScoreBody, Scores
from ganglion.wire.tokenizer import TokenizeAnswer, TokenizeBody

Answer = TypeVar("Answer")

NODE: Final = Group("Node", sort_key=5)
DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT_S: Final = 10.0
SILENCE_S: Final = 60.0
"""A node that loads says at least every ten seconds that it is there."""
DRAIN_S: Final = 3600.0
"""A model leaves when its requests are finished; none runs longer than this by default."""
SCORE_S: Final = 600.0
"""A long prompt takes a slow machine minutes, and the answer comes as a whole."""
BODY_LIMIT: Final = 16 << 20
LINE_LIMIT: Final = 1 << 20


@Parameter(name="*", group=NODE)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """Which node is meant."""

    url: Annotated[
        str,
        Parameter(
            help=f"Address of the node (default {DEFAULT_URL}).", env_var="GANGLION_URL", show_default=False
        ),
    ] = DEFAULT_URL
    api_key: Annotated[
        str | None, Parameter(help="A key of the node.", env_var="GANGLION_API_KEY", show_default=False)
    ] = None

    def node(self) -> "Node":
        """Ready to be asked; raises InvalidValue."""
        return Node(self.url, self.api_key)


NODE_UNSET: Final = NodeFlags()


class Node:
    """One node; every call is a connection of its own."""

    def __init__(self, url: str, api_key: str | None) -> None:
        address = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = address.port
        except ValueError:
            port = -1
        if address.scheme not in ("http", "https") or not address.hostname or port == -1:
            raise InvalidValue(
                f"{url!r} is not the address of a node.",
                param="url",
                hint=f"An address looks like {DEFAULT_URL}.",
            )
        self.url = f"{address.scheme}://{address.netloc}{address.path}".rstrip("/")
        self._is_secure = address.scheme == "https"
        self._host, self._port, self._path = address.hostname, port, address.path.rstrip("/")
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    def models(self) -> list[HeldModel]:
        """`GET /models`."""
        return self._ask("GET", "/models", list[HeldModel])

    def health(self) -> Health:
        """`GET /health`."""
        return self._ask("GET", "/health", Health)

    def load(self, body: LoadBody) -> Iterator[LoadProgress]:
        """`POST /models/load`, step by step; the last step is the loaded model, a failure is raised."""
        accept = {"accept": "text/event-stream"}
        with self._answer("POST", "/models/load", SILENCE_S, body, accept) as response:
            for event, data in _events(_lines(response, self.url)):
                if event == "error":
                    raise _refusal(200, data, self.url)
                if event == "loaded":
                    loaded = _decoded(data, Loaded, self.url)
                    yield LoadProgress(loaded.model, loaded.status)
                    return
                if event == "progress":
                    yield _decoded(data, LoadProgress, self.url)
        raise ServerError(f"{self.url} broke off while the model was loading.", hint="ganglion models ps")

    def begin_load(self, body: LoadBody) -> Loaded:
        """The same without waiting for it."""
        return self._ask("POST", "/models/load?wait=false", Loaded, body)

    def unload(self, body: UnloadBody) -> Loaded:
        """`POST /models/unload`; comes back when the model is gone."""
        return self._ask("POST", "/models/unload", Loaded, body, DRAIN_S)

    def score(self, body: ScoreBody) -> Scores:
        """`POST /v1/score`."""
        return self._ask("POST", "/v1/score", Scores, body, SCORE_S)

    def tokenize(self, body: TokenizeBody) -> TokenizeAnswer:
        """`POST /tokenize`."""
        return self._ask("POST", "/tokenize", TokenizeAnswer, body)

    def _ask(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: msgspec.Struct | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        with self._answer(method, path, timeout_s, body) as response:
            return _decoded(response.read(BODY_LIMIT), kind, self.url)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: msgspec.Struct | None = None,
        headers: dict[str, str] | None = None,
    ) -> Generator[http.client.HTTPResponse]:
        """The response, its status a good one; raises what the node, or the way there, says against it."""
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
                raise _refusal(response.status, response.read(BODY_LIMIT), self.url)
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self.url, error) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)


def _lines(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    while line := response.readline(LINE_LIMIT):
        if not line.endswith(b"\n"):
            raise ServerError(f"{url} sent a line that has no end.")
        yield line[:-1]


def _events(lines: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Named server-sent events, each with one line of data, as the node writes them."""
    event, data = "", b""
    for line in lines:
        if line.startswith(b"event: "):
            event = line.removeprefix(b"event: ").decode(errors="replace")
        elif line.startswith(b"data: "):
            data = line.removeprefix(b"data: ")
        elif not line and data:
            yield event, data
            event, data = "", b""


def _decoded(data: bytes, kind: type[Answer], url: str) -> Answer:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise _stranger(url) from error


def _refusal(status: int, body: bytes, url: str) -> GanglionError:
    try:
        message = msgspec.json.decode(body, type=ErrorEnvelope).error.message
    except msgspec.MsgspecError:
        return _stranger(url)
    if status == InvalidApiKey.status:
        return InvalidApiKey(message, hint="Give a key with --api-key, or in GANGLION_API_KEY.")
    return ServerError(message)


def _stranger(url: str) -> ServerError:
    return ServerError(
        f"What answers at {url} is not a Ganglion node.",
        hint="Name the node with --url or GANGLION_URL, or start one with `ganglion serve`.",
    )


def _unreachable(url: str, error: Exception) -> ServerError:
    if isinstance(error, TimeoutError):
        reason = "it does not answer in time"
    elif isinstance(error, OSError):
        reason = error.strerror or str(error)
    else:
        reason = f"what answers there is no web server ({type(error).__name__})"
    return ServerError(
        f"No node at {url}: {reason}.",
        hint="Start one with `ganglion serve`, or name another with --url or GANGLION_URL.",
    )
