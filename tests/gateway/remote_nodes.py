"""Nodes of a fleet inside the test's own process, and the simplest way to choose among them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import GanglionError, ModelNotFound
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from ganglion.gateway.routing.decision import (
    ChosenNode,
    ColdModel,
    NoRoute,
    RoutingDecision,
    RoutingRequest,
    TranslatedNode,
)
from ganglion.wire.openai_errors import encode_error
from support.served import serving


@asynccontextmanager
async def listening(engine: ManagedEngine, **fields: object) -> AsyncIterator[str]:
    """A node around an engine: its URL."""
    async with serving(engine, **{"has_grpc": False, "is_strict": True, **fields}) as node:
        yield node.url


def echo(script: EchoScript | None = None, **settings: object) -> EchoEngine:
    """An echo that does what its prompt tells it."""
    fields = {"allow_directives": True, **settings}
    return EchoEngine(EchoSettings(**fields), script)  # type: ignore[arg-type]


def held(spec: NodeSpec, *models: str, **facts: object) -> NodeView:
    """A healthy node that holds these models."""
    replicas = tuple(
        Replica(model, "loaded", context_length=8192, **facts)  # type: ignore[arg-type]
        for model in models
    )
    return NodeView(spec, is_healthy=True, replicas=replicas)


@dataclass
class InOrder:
    """Chooses the first node, by name, that holds the model and has not had its turn."""

    fleet: Fleet
    cold: frozenset[str] = frozenset()
    asked: list[RoutingRequest] = field(default_factory=list)

    def choose(self, asked: RoutingRequest) -> RoutingDecision:
        self.asked.append(asked)
        for name in sorted(self.fleet.nodes):
            view = self.fleet.nodes[name]
            names = {known for replica in view.replicas for known in (replica.id, *replica.aliases)}
            if name in asked.tried or asked.model not in names or not self.fleet.has_room(view):
                continue
            kind = ChosenNode if asked.wire in view.spec.wires else TranslatedNode
            return kind(view.spec, asked.model)
        return ColdModel(asked.model) if asked.model in self.cold else NoRoute(ModelNotFound(asked.model))


@dataclass
class Loads:
    """Remembers what was to be loaded, and puts it on a node."""

    fleet: Fleet
    onto: str = ""
    loaded: list[str] = field(default_factory=list)

    async def load(self, model: str) -> None:
        self.loaded.append(model)
        if self.onto:
            view = self.fleet.nodes[self.onto]
            self.fleet.put(replace(view, replicas=(*view.replicas, Replica(model, "loaded"))))


@dataclass
class Scripted:
    """A server that does with each request what its script says, and remembers them."""

    url: str = ""
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def header(self, name: bytes, request: int = -1) -> bytes | None:
        for line in self.heads[request].split(b"\r\n")[1:]:
            key, _, value = line.partition(b": ")
            if key.lower() == name:
                return value
        return None


@asynccontextmanager
async def scripted(*answers: bytes | None) -> AsyncIterator[Scripted]:
    """Answers each request with the next of these bytes, the last one over and over.

    Then the connection is closed; None closes it at once.
    """
    told = Scripted()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            told.bodies.append(await reader.readexactly(length))
            told.heads.append(head)
            answer = answers[min(len(told.heads), len(answers)) - 1]
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    told.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield told


def response(status: int, body: bytes, kind: bytes = b"application/json", *, is_whole: bool = True) -> bytes:
    """A response; one that is not whole announces more than it holds."""
    length = len(body) + (0 if is_whole else 100)
    head = b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, length) + body


def refused(error: GanglionError) -> bytes:
    """The response of one of our nodes that refuses."""
    return response(error.status, encode_error(error))
