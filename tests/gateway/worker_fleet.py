"""A real gateway of several processes, a node that joins it, and callers who know which process they got."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.gateway.byte_server import Line, answer, byte_server

from ganglion.wire.fleet import NodeState, ReplicaState, encode
from ganglion.wire.health import DeviceHealth
from support.ports import free_port

ADMIN = "gk-admin"
CATALOGUE = '[[models]]\nid = "cold"\nmemory_mb = 100\n'


@dataclass(frozen=True)
class Gateway:
    """A running `ganglion gateway --workers N`."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path

    @property
    def log(self) -> str:
        return (self.home / "gateway.log").read_text()

    def workers(self) -> dict[int, psutil.Process]:
        """The processes by their places, told by the sockets on which they hear each other."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                paths = [Path(each.laddr) for each in child.net_connections("unix") if each.laddr]
                places = [path.name for path in paths if path.name.startswith("worker-")]
                found |= {int(place.removeprefix("worker-")): child for place in places}
        return found

    async def replaced(self, place: int, former: int) -> psutil.Process:
        """Wait until somebody else serves in a place."""
        for _ in range(200):
            process = self.workers().get(place)
            if process is not None and process.pid != former:
                return process
            await asyncio.sleep(0.05)
        raise AssertionError(f"nobody took the place {place}: {self.log}")


@contextmanager
def gateway_of(home: Path, *flags: str, workers: int = 2) -> Iterator[Gateway]:
    """Start one; whatever happens, none of its processes is there afterwards."""
    (home / "models.toml").write_text(CATALOGUE)
    port = free_port()
    command = [sys.executable, "-m", "ganglion.cli.main", "gateway", "--port", str(port), "--no-grpc"]
    command += ["--workers", str(workers), "--catalogue", str(home / "models.toml"), *flags]
    environment = {**os.environ, "GANGLION_HOME": str(home), "GANGLION_SERVER__ADMIN_KEYS": ADMIN}
    with (home / "gateway.log").open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment)
    gateway = Gateway(process, port, home)
    family: list[psutil.Process] = []
    try:
        until_s = time.monotonic() + 20
        while "listens on" not in gateway.log:
            assert process.poll() is None and time.monotonic() < until_s, gateway.log
            time.sleep(0.05)
        family = psutil.Process(process.pid).children()
        yield gateway
    finally:
        with suppress(psutil.Error):
            family += psutil.Process(process.pid).children()
        process.kill()
        process.wait(5)
        for each in family:
            with suppress(psutil.Error):
                each.kill()


@dataclass
class Caller:
    """One connection to the gateway; whoever accepted it answers all that is asked on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def port(self) -> int:
        port: int = self.writer.get_extra_info("sockname")[1]
        return port

    async def call(
        self, method: str, path: str, body: object = None, *, key: str = ADMIN
    ) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        told = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        lengths = [line.split(":")[1] for line in told if line.lower().startswith("content-length:")]
        return int(told[0].split(" ")[1]), await self.reader.readexactly(int(lengths[0]))

    async def chat(self, model: str = "m", *, key: str = ADMIN) -> int:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        status, _ = await self.call("POST", "/v1/chat/completions", body, key=key)
        return status


@asynccontextmanager
async def calling(gateway: Gateway) -> AsyncIterator[Caller]:
    """A connection to whoever takes it."""
    caller = Caller(*await asyncio.open_connection("127.0.0.1", gateway.port))
    try:
        yield caller
    finally:
        caller.writer.close()
        with suppress(ConnectionError):
            await caller.writer.wait_closed()


@asynccontextmanager
async def callers(gateway: Gateway, least: int = 1) -> AsyncIterator[dict[int, list[Caller]]]:
    """Connections, at least so many to each worker, by the worker's place."""
    made: list[Caller] = []
    async with AsyncExitStack() as stack:
        for _ in range(200):
            made.append(await stack.enter_async_context(calling(gateway)))
            await made[-1].call("GET", "/health/live")
            found = _by_worker(gateway, made)
            if len(found) > 1 and all(len(each) >= least for each in found.values()):
                break
        else:
            raise AssertionError("one worker takes all connections")
        yield found


def _by_worker(gateway: Gateway, made: list[Caller]) -> dict[int, list[Caller]]:
    by_port = {each.port: each for each in made}
    found: dict[int, list[Caller]] = {}
    for place, process in gateway.workers().items():
        ports = {each.raddr.port for each in process.net_connections("tcp") if each.raddr}
        found[place] = [by_port[port] for port in sorted(ports & by_port.keys())]
    return found


@dataclass
class Joined:
    """A node that does what it is told, and counts it."""

    name: str
    gateway: Gateway
    models: tuple[str, ...] = ("m",)
    answer_s: float = 0.0
    loads: Counter[str] = field(default_factory=Counter)
    epochs: list[int] = field(default_factory=list)
    url: str = ""
    _version: int = 1
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, line: Line) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                target = (await line.asked()).split(" ")[1]
                await line.say(answer(await self._answer(target)))

    async def _answer(self, target: str) -> bytes:
        path, _, query = target.partition("?")
        if path == "/fleet/state":
            if f"since={self._version}&" in query:
                with suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await self._news.wait()
            return encode(self._state())
        if path == "/models/load":
            self.loads["cold"] += 1
            await asyncio.sleep(0.3)
            self.models = (*self.models, "cold")
            self._version += 1
            self._news.set()
            return b'{"status": "loaded", "model": "cold"}'
        if path == "/v1/chat/completions":
            await asyncio.sleep(self.answer_s)
            return b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
        return b'{"models": []}'

    def _state(self) -> NodeState:
        return NodeState(
            boot=f"boot-{self.name}",
            version=self._version,
            status="ok",
            models=tuple(ReplicaState(id=model, status="loaded", memory_mb=100) for model in self.models),
            devices=(DeviceHealth(-1, "cpu", 0, 8000, None, None),),
        )

    async def join(self, caller: Caller) -> None:
        """Ask for a lease, or keep it."""
        body = {"name": self.name, "url": self.url, "boot": f"boot-{self.name}"}
        if self.epochs:
            body["epoch"] = self.epochs[-1]  # type: ignore[assignment]
        status, told = await caller.call("POST", "/fleet/join", body)
        assert status == 200, told
        self.epochs.append(json.loads(told)["epoch"])


@asynccontextmanager
async def joined(gateway: Gateway, name: str, **fields: object) -> AsyncIterator[Joined]:
    """A node that has joined, and leaves."""
    node = Joined(name, gateway, **fields)  # type: ignore[arg-type]
    async with byte_server(node) as server:
        node.url = server.url
        async with calling(gateway) as caller:
            await node.join(caller)
        try:
            yield node
        finally:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                async with calling(gateway) as caller:
                    await caller.call("POST", "/fleet/leave", {"name": name, "epoch": node.epochs[-1]})


def count_of(page: bytes, series: str) -> dict[int, float]:
    """What `/metrics` says of a series, by worker, over all other labels."""
    total: Counter[int] = Counter()
    for line in page.decode().splitlines():
        if line.startswith(series + "{"):
            total[int(line.split('worker="')[1].split('"')[0])] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    return dict(total)
