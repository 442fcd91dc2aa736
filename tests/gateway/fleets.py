"""A fleet of real processes on loopback: nodes that echo, a gateway on top, each killed at will."""

import asyncio
import atexit
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil
from asking_fleets import Said, ask

from support.ports import free_port
from support.waiting import until

SOAK = max(1, int(os.environ.get("GANGLION_SOAK", "1")))
"""How many times as much as in the suite; 25 makes 500 kills of 20."""
KILLS = 20 * SOAK
NODE_KEY = "between-us"
QUICK = "[gateway]\npoll_s = 0.1\n"
"""So that a node that is back is known to be."""
ROOT = Path(__file__).parents[2]


@cache
def nest_process() -> subprocess.Popen[bytes]:
    """One for as long as this process lives: its imports are what takes time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANGLION_")}
    process = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "nest.py"],
        cwd=ROOT,
        env={**kept, "NO_COLOR": "1", "GRPC_VERBOSITY": "ERROR"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


class Nest:
    """Forks processes for one test through one that has imported everything; see nest.py."""

    def __init__(self) -> None:
        process = nest_process()
        assert process.stdin is not None and process.stdout is not None
        self._asks, self._tells = process.stdin.fileno(), process.stdout.fileno()
        self._heard = b""
        self._awaited: deque[asyncio.Future[int]] = deque()
        self._ends: dict[int, asyncio.Future[int]] = {}
        asyncio.get_running_loop().add_reader(self._tells, self._read)

    def _read(self) -> None:
        *lines, self._heard = (self._heard + os.read(self._tells, 65536)).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "pid" in said:
                self._ends[said["pid"]] = asyncio.get_running_loop().create_future()
                self._awaited.popleft().set_result(said["pid"])
            else:
                self._ends.pop(said["gone"]).set_result(said["status"])

    async def fork(self, home: Path, args: Sequence[str], log: Path) -> "Process":
        home.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - a local folder
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited.append(asked)
        line = {"home": str(home), "args": list(args), "log": str(log)}
        os.write(self._asks, json.dumps(line).encode() + b"\n")
        pid = await asyncio.wait_for(asked, 30)
        return Process(pid, self._ends[pid])

    async def close(self) -> None:
        """All that it forked ends with it."""
        ends = dict(self._ends)
        for pid in ends:
            os.kill(pid, signal.SIGKILL)
        if ends:
            await asyncio.wait(ends.values(), timeout=10)
        assert not self._ends
        asyncio.get_running_loop().remove_reader(self._tells)


@dataclass(frozen=True)
class Process:
    """One that the nest forked; `ended` becomes its exit status."""

    pid: int
    ended: asyncio.Future[int]

    def signal(self, number: signal.Signals) -> None:
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await asyncio.wait_for(asyncio.shield(self.ended), 10)

    async def terminate(self, timeout_s: float = 15.0) -> int:
        """Let it drain; returns its exit status."""
        self.signal(signal.SIGTERM)
        return await asyncio.wait_for(asyncio.shield(self.ended), timeout_s)


@dataclass
class Server:
    """A node or a gateway, that may be started again where it stood."""

    nest: Nest
    name: str
    home: Path
    port: int
    args: list[str]
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home / "log.txt"

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    async def start(self) -> None:
        self.process = await self.nest.fork(self.home, self.args, self.log)
        await self.until_listening()

    async def until_listening(self) -> None:
        process = self.running
        deadline_s = time.monotonic() + 20
        while True:
            assert not process.ended.done(), self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        await self.running.kill()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    def noted(self, word: str) -> int:
        """How often a hollow node says that it did something."""
        return sum(line.startswith(word) for line in self.log.read_text().splitlines())

    async def page(self, path: str, key: str | None = NODE_KEY) -> bytes:
        said = await ask(self.port, path, key=key)
        assert said.status == 200, said.head
        return said.body

    async def gauges(self, name: str, label: str = "", key: str | None = NODE_KEY) -> dict[str, float]:
        """A metric, by one of its labels."""
        page = (await self.page("/metrics", key)).decode()
        found: dict[str, float] = {}
        for labels, value in re.findall(rf"^{name}(?:\{{([^}}]*)\}})? (\S+)$", page, re.MULTILINE):
            kind = re.search(rf'{label}="([^"]*)"', labels) if label else None
            of = kind[1] if kind else ""
            found[of] = found.get(of, 0.0) + float(value)
        return found

    async def gauge(self, name: str, key: str | None = NODE_KEY) -> float:
        return sum((await self.gauges(name, key=key)).values())


@dataclass
class Fleet:
    """Nodes by name, and the gateway that they are behind."""

    nest: Nest
    folder: Path
    gateway: Server
    nodes: dict[str, Server] = field(default_factory=dict)
    key: str | None = None
    """What clients and operators show the gateway."""

    def node(self, name: str, *args: str, port: int | None = None) -> Server:
        """One more node, not started yet; without arguments it echoes."""
        port = port or free_port()
        said = args or ("serve", "--engine", "echo", "--no-grpc", "--gateway-key", NODE_KEY)
        server = Server(self.nest, name, self.folder / name, port, [*said, "--port", str(port)])
        self.nodes[name] = server
        return server

    async def ask(self, path: str, body: object = None, **more: object) -> Said:
        """One answer of the gateway."""
        return await ask(self.gateway.port, path, body, key=self.key, **more)  # type: ignore[arg-type]

    async def in_flight(self) -> dict[str, float]:
        """By node, as the gateway counts."""
        return await self.gateway.gauges("ganglion_gateway_in_flight", "node", self.key)

    async def overview(self) -> dict[str, dict[str, object]]:
        """What the gateway thinks of its nodes."""
        nodes = json.loads(await self.gateway.page("/fleet", self.key))["nodes"]
        return {node["name"]: node for node in nodes}

    async def until_healthy(self, *names: str, timeout_s: float = 10.0) -> None:
        """Wait until the gateway sends work to these, or to all."""

        async def are() -> bool:
            seen = await self.overview()
            return all(name in seen and seen[name]["healthy"] for name in names or self.nodes)

        await until(are, timeout_s)

    async def until_idle(self, timeout_s: float = 5.0) -> None:
        """Wait until nothing runs, at the gateway and at every node."""

        async def is_idle() -> bool:
            busy = sum((await self.in_flight()).values())
            for node in self.nodes.values():
                if node.args[0] == "serve" and not node.running.ended.done():
                    busy += await node.gauge("ganglion_requests_in_flight")
            return not busy

        await until(is_idle, timeout_s, pause_s=0.05)

    def holdings(self) -> tuple[int, int]:
        """Descriptors and threads of the gateway."""
        process = psutil.Process(self.gateway.running.pid)
        return process.num_fds(), process.num_threads()

    async def command(self, *args: str) -> str:
        """What a command in the gateway's home prints; it must succeed."""
        log = self.folder / f"command-{time.monotonic_ns()}.txt"
        done = await self.nest.fork(self.gateway.home, args, log)
        status = await asyncio.wait_for(asyncio.shield(done.ended), 30)
        assert status == 0, log.read_text()
        return log.read_text()

    async def new_key(self, name: str, *args: str) -> str:
        """A key that the gateway knows by now; before its first one it lets everybody in."""
        printed = await self.command("keys", "create", name, *args)
        key: str = re.findall(r"gk-[\w-]{43}", printed)[0]

        async def is_known() -> bool:
            strangers = await ask(self.gateway.port, "/v1/models")
            return (
                strangers.status == 401
                and (await ask(self.gateway.port, "/v1/models", key=key)).status == 200
            )

        await until(is_known, pause_s=0.02)
        return key

    async def orphans(self) -> list[int]:
        """Processes below those that the nest forked."""
        return [
            child.pid
            for server in (self.gateway, *self.nodes.values())
            if server.process is not None and psutil.pid_exists(server.process.pid)
            for child in psutil.Process(server.process.pid).children(recursive=True)
        ]


@asynccontextmanager
async def fleet_of(
    folder: Path, nodes: int = 3, *, settings: str = QUICK, catalogue: str = "", joins: bool = False
) -> AsyncIterator[Fleet]:
    """A gateway over so many echoes, all of them up; `settings` are lines of its fleet.toml."""
    nest = Nest()
    port = free_port()
    config = folder / "fleet.toml"
    args = ["gateway", "--no-grpc", "--port", str(port), "--node-key", NODE_KEY, "--config", str(config)]
    fleet = Fleet(nest, folder, Server(nest, "gateway", folder / "gateway", port, args))
    try:
        for name in "abcdefgh"[:nodes]:
            node = fleet.node(name)
            if joins:
                node.args += ["--join", fleet.gateway.url, "--node-name", name]
        declared = "" if joins else "".join(declaration(node) for node in fleet.nodes.values())
        if catalogue:
            (folder / "models.toml").write_text(catalogue)
            args += ["--catalogue", str(folder / "models.toml")]
        config.write_text(settings + declared)
        await asyncio.gather(*(node.start() for node in fleet.nodes.values()))
        if nodes:
            await fleet.gateway.start()
            await fleet.until_healthy()
        yield fleet
    finally:
        await nest.close()


def declaration(node: Server, *, port: int | None = None, cool_down_after: int = 1000) -> str:
    """A node in fleet.toml; by itself none is ever left alone for having failed."""
    return (
        f'\n[[nodes]]\nname = "{node.name}"\nurl = "http://127.0.0.1:{port or node.port}"\n'
        f"cool_down_after = {cool_down_after}\n"
    )
