"""A node on a real socket that does nothing but hold models: counts what it is asked, and fails when told."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import DeviceMemory, NodeSpec, NodeView, Replica


@dataclass
class LoadingNode:
    """Memory for so much, and what it holds of it."""

    name: str
    fleet: Fleet
    total_mb: int = 8000
    cards_mb: tuple[int, ...] = ()
    """Memory of each of its devices; none for a processor with `total_mb`."""
    sizes_mb: dict[str, int] = field(default_factory=dict)
    delay_s: float = 0.01
    failing: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By model: the status and code that a load ends with."""
    names: dict[str, str] = field(default_factory=dict)
    """What a source is listed as."""
    held: dict[str, Replica] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)
    unloads: Counter[str] = field(default_factory=Counter)
    asked: list[dict[str, object]] = field(default_factory=list)
    """The bodies of loads, without what was left open."""
    is_silent: bool = False
    """Whether the fleet does not hear of its changes."""
    used_s: float = 0.0
    port: int = 0
    callers: set[asyncio.Task[None]] = field(default_factory=set)

    def tell(self) -> None:
        """The fleet hears how it is, as from a poll."""
        if self.is_silent:
            return
        taken = sum(self.sizes_mb.get(name, 100) for name in self.held)
        spec = NodeSpec(self.name, f"http://127.0.0.1:{self.port}")
        self.fleet.put(
            NodeView(
                spec,
                is_healthy=True,
                replicas=tuple(self.held.values()),
                devices=tuple(
                    DeviceMemory(index, "card", mb, mb - taken // len(self.cards_mb))
                    for index, mb in enumerate(self.cards_mb)
                )
                or (DeviceMemory(-1, "cpu", self.total_mb, self.total_mb - taken),),
            )
        )

    def hold(self, model: str, status: str = "loaded") -> None:
        self.used_s += 1
        self.held[model] = Replica(
            model,
            status,  # type: ignore[arg-type]
            memory_mb=self.sizes_mb.get(model, 100),
            in_flight=self.busy[model],
            last_used_s=self.used_s,
        )
        self.tell()

    async def load(self, source: str) -> tuple[int, object]:
        self.loads[source] += 1
        name = self.names.get(source, source)
        await asyncio.sleep(self.delay_s)
        if source in self.failing:
            status, code = self.failing[source]
            return status, {"error": {"message": "It cannot be.", "type": "t", "param": None, "code": code}}
        taken = sum(self.sizes_mb.get(each, 100) for each in self.held)
        if taken + self.sizes_mb.get(name, 100) > self.total_mb:
            detail = {"message": "Full.", "code": "insufficient_memory", "free_mb": 1, "required_mb": 2}
            return 503, {"error": detail}
        self.hold(name)
        return 200, {"status": "loaded", "model": name}

    async def unload(self, name: str) -> tuple[int, object]:
        self.unloads[name] += 1
        assert not self.busy[name], f"{name} was made to leave while busy"
        self.held.pop(name, None)
        self.tell()
        return 200, {"status": "unloaded", "model": name}

    def health(self) -> object:
        models = [
            {
                "id": name,
                "status": "loaded",
                "in_flight": self.busy[name],
                "queued": 0,
                "kv_used": 0,
                "kv_total": 0,
            }
            for name in self.held
        ]
        return {"status": "ok", "models": models}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.callers.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                status, answer = await self.route(head.split(" ")[1], body)
                data = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def route(self, path: str, body: bytes) -> tuple[int, object]:
        if path == "/health":
            return 200, self.health()
        asked = json.loads(body)
        assert "devices" not in asked or asked["devices"] is None
        if path == "/models/load":
            self.asked.append({name: value for name, value in asked.items() if value is not None})
        return await (self.load if path == "/models/load" else self.unload)(asked["model_id"])


@asynccontextmanager
async def listening(*nodes: LoadingNode) -> AsyncIterator[None]:
    servers = []
    for node in nodes:
        server = await asyncio.start_server(node.answer, "127.0.0.1", 0)
        servers.append(server)
        node.port = server.sockets[0].getsockname()[1]
        node.tell()
    try:
        yield
    finally:
        for server in servers:
            server.close()
        await asyncio.gather(*(caller for node in nodes for caller in node.callers))
