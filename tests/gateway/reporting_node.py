"""A node of ours by its wire alone: answers `/fleet/state` as a test has it say, and keeps count."""

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from byte_server import Line, answer

from ganglion.wire.fleet import NodeState, ReplicaState, encode


@dataclass
class ReportingNode:
    """What it says next; `tell` makes it news."""

    state: NodeState
    discovery: bytes = b'{"version": "9.9", "grpc": {"host": "0.0.0.0", "port": 50051}}'
    asked: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def tell(self, state: NodeState) -> None:
        async with self._news:
            self.state = state
            self._news.notify_all()

    async def __call__(self, line: Line) -> None:
        while True:
            target = (await line.asked()).split(" ")[1]
            self.asked.append(target)
            parts = urlsplit(target)
            if parts.path == "/discovery":
                await line.say(answer(self.discovery))
                continue
            query = parse_qs(parts.query)
            if "since" in query:
                await self._until_news(int(query["since"][0]), float(query["wait"][0]))
            await line.say(answer(encode(self.state)))

    async def _until_news(self, since: int, wait_s: float) -> None:
        async with self._news:
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait_for(lambda: self.state.version != since)
            except TimeoutError:
                pass


def state(version: int = 1, *models: ReplicaState, boot: str = "one", **fields: object) -> NodeState:
    """A node that is well."""
    return NodeState(**{"boot": boot, "version": version, "status": "ok", "models": models} | fields)


def model(name: str = "m", status: str = "loaded", **fields: object) -> ReplicaState:
    return ReplicaState(**{"id": name, "status": status} | fields)


def listing(*names: str) -> bytes:
    """The body of `GET /v1/models` of a server that is not ours."""
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()
