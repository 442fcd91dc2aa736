"""A front on a real port, with scripted nodes behind it and a keeper of keys that remembers everything."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from ganglion.core.errors import InvalidApiKey, ModelNotFound, RateLimited
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import Admission, AdmissionRequest, Identity
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.metrics import GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.proxy.listener import ProxyListener, ProxySettings
from ganglion.gateway.routing.decision import ChosenNode, NoRoute, RoutingDecision, RoutingRequest
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.wire.dialects import USUAL_WIRES
from support.raw_http import RawResponse, read_response


@dataclass(slots=True)
class Asking:
    """A request as a scripted node got it."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)


Script = Callable[[Asking, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes, *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    """A whole response."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def always(data: bytes) -> Script:
    """A node that answers everything in the same way."""

    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return script


@dataclass(slots=True)
class ScriptedNode:
    """A node that does what its script says."""

    script: Script
    asked: list[Asking] = field(default_factory=list)
    gone: int = 0
    """Requests whose connection ended before the script did."""
    port: int = 0
    server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        self.port = self.server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self.server is not None
        self.server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                asking = await _read(reader)
                self.asked.append(asking)
                await self.script(asking, reader, writer)
                if writer.is_closing():
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def _read(reader: asyncio.StreamReader) -> Asking:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head[:-4].split(b"\r\n")
    headers = [(name.lower(), value) for name, _, value in (entry.partition(b": ") for entry in rest)]
    length = int(dict(headers).get(b"content-length", b"0"))
    return Asking(line, headers, await reader.readexactly(length))


@dataclass(slots=True)
class Place:
    """A reservation, and what it was settled with."""

    wanted: AdmissionRequest
    settled: list[Usage | None] = field(default_factory=list)
    answer_tokens: int | None = None
    answered: str = ""

    @property
    def model(self) -> str:
        return self.answered or self.wanted.model

    def answered_by(self, model: str) -> None:
        self.answered = model

    async def reserve_more(self, wanted: AdmissionRequest) -> None:
        self.wanted = wanted

    def settle(self, usage: Usage | None) -> None:
        self.settled.append(usage)


@dataclass(slots=True)
class Keeper:
    """A gatekeeper over a dictionary of keys; it can make requests wait, and refuse them."""

    keys: dict[bytes, Identity] = field(default_factory=dict)
    waits: bool = False
    refuses: bool = False
    places: list[Place] = field(default_factory=list)

    def identify(self, key: bytes | None) -> Identity:
        if not self.keys:
            return Identity("everybody", role="admin")
        identity = self.keys.get(key or b"")
        if identity is None:
            raise InvalidApiKey("The API key is not valid here.")
        return identity

    def admit_now(self, identity: Identity, wanted: AdmissionRequest) -> Admission | None:
        if self.refuses:
            raise RateLimited("Enough for this minute.")
        if self.waits:
            return None
        place = Place(wanted)
        self.places.append(place)
        return place

    async def admit(self, identity: Identity, wanted: AdmissionRequest) -> Admission:
        await asyncio.sleep(0.001)
        place = Place(wanted)
        self.places.append(place)
        return place


@dataclass(slots=True)
class InTurn:
    """A chooser that takes the first node that was not tried, of a list that turns."""

    fleet: Fleet
    asked: list[RoutingRequest] = field(default_factory=list)
    model: str | None = None
    """What nodes call every model; None for what the client calls it."""
    decisions: list[RoutingDecision] = field(default_factory=list)
    """Given out first."""

    def choose(self, asked: RoutingRequest) -> RoutingDecision:
        self.asked.append(asked)
        if self.decisions:
            return self.decisions.pop(0)
        for view in self.fleet.nodes.values():
            if view.name not in asked.tried and asked.wire in view.spec.wires:
                return ChosenNode(view.spec, self.model or asked.model)
        return NoRoute(ModelNotFound(asked.model))


@dataclass(slots=True)
class Stage:
    """Everything that a test looks at."""

    front: ProxyListener
    fleet: Fleet
    keeper: Keeper
    chooser: InTurn
    nodes: dict[str, ScriptedNode]
    desk: ScriptedNode
    port: int
    log: list[str]
    poked: list[str]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def send(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        self.writers.append(writer)
        writer.write(data)
        return reader, writer

    async def ask(self, data: bytes) -> RawResponse:
        """Send a request and read its response."""
        reader, writer = await self.send(data)
        try:
            return await read_response(reader)
        finally:
            writer.close()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way, and every place was settled once."""
        return (
            not self.front.in_flight
            and not any(self.fleet.in_flight.values())
            and all(len(place.settled) == 1 for place in self.keeper.places)
        )


def post(path: str, body: bytes, *more: str, version: str = "1.1") -> bytes:
    lines = "".join(f"{line}\r\n" for line in more)
    head = f"POST {path} HTTP/{version}\r\nhost: here\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    return head.encode() + body


def get(path: str, *more: str, method: str = "GET") -> bytes:
    lines = "".join(f"{line}\r\n" for line in more)
    return f"{method} {path} HTTP/1.1\r\nhost: here\r\n{lines}\r\n".encode()


CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'


@asynccontextmanager
async def staged(
    *scripts: Script,
    settings: ProxySettings | None = None,
    is_foreign: bool = False,
    keeper: Keeper | None = None,
    desk: Script | None = None,
) -> AsyncGenerator[Stage, None]:
    """A front before nodes named n0, n1, … that play these scripts."""
    nodes = {f"n{number}": ScriptedNode(script) for number, script in enumerate(scripts)}
    behind = ScriptedNode(desk or always(answer(b'{"desk":true}')))
    for node in (*nodes.values(), behind):
        await node.open()
    specs = tuple(_spec(name, node, is_foreign=is_foreign) for name, node in nodes.items())
    fleet = Fleet(specs)
    pools = ConnectionPools()
    keeper = keeper or Keeper()
    chooser = InTurn(fleet)
    log: list[str] = []
    poked: list[str] = []
    front = ProxyListener(
        replace(settings or ProxySettings(), log=log.append),
        fleet=fleet,
        chooser=chooser,
        gatekeeper=keeper,
        loader=None,
        pools=pools,
        control_app=NodeSpec("desk", behind.url),
        metrics=GatewayMetrics(),
        probe_now=poked.append,
    )
    server = await asyncio.get_running_loop().create_server(front.connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stage = Stage(front, fleet, keeper, chooser, nodes, behind, port, log, poked)
    try:
        yield stage
    finally:
        for writer in stage.writers:
            writer.transport.abort()
        server.close()
        await front.close()
        pools.close()
        for node in (*nodes.values(), behind):
            await node.close()


def _spec(name: str, node: ScriptedNode, *, is_foreign: bool) -> NodeSpec:
    if is_foreign:
        return NodeSpec(name, node.url, "openai", api_key="theirs", wires=USUAL_WIRES | {"messages"})
    return NodeSpec(name, node.url, api_key="ours", epoch=7)
