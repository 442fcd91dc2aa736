"""A node that is only its wire: tells a state, loads what it is told to, answers chat, and dies of poison.

Each thing that it did is a line of its log: `load NAME`, `chat`, `poison`.
"""

import argparse
import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field

from ganglion.wire.fleet import NodeState, ReplicaState, encode
from ganglion.wire.health import DeviceHealth

POISON = "arsenic"
SLOW_POISON = "strychnine"
"""Kills after the first words."""


@dataclass
class HollowNode:
    """What it holds, and how it loads."""

    held: list[str]
    load_s: float
    fails: bool
    boot: str = field(default_factory=lambda: os.urandom(8).hex())
    version: int = 1
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def state(self) -> bytes:
        models = tuple(ReplicaState(id=name, status="loaded") for name in self.held)
        room = DeviceHealth(-1, "cpu", 4000, 60000, None, None)
        return encode(
            NodeState(boot=self.boot, version=self.version, status="ok", models=models, devices=(room,))
        )

    async def route(self, target: str, body: bytes) -> tuple[int, bytes]:
        path, _, query = target.partition("?")
        match path:
            case "/fleet/state":
                if f"since={self.version}&" in query:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.news.wait(), 1.0)
                return 200, self.state()
            case "/models/load":
                return await self.load(json.loads(body)["model_id"])
            case "/v1/chat/completions":
                return 200, self.chat(json.loads(body))
            case "/discovery":
                return 200, b'{"version": "1"}'
            case "/health":
                return 200, json.dumps({"status": "ok", "models": []}).encode()
            case _:
                return 404, b'{"error": {"message": "no such route", "code": "not_found"}}'

    async def load(self, name: str) -> tuple[int, bytes]:
        note(f"load {name}")
        await asyncio.sleep(self.load_s)
        if self.fails:
            error = {"message": "It cannot be read.", "type": "server_error", "param": None}
            return 422, json.dumps({"error": {**error, "code": "load_failed"}}).encode()
        self.held.append(name)
        self.version += 1
        self.news.set()
        self.news = asyncio.Event()
        return 200, json.dumps({"status": "loaded", "model": name}).encode()

    def chat(self, asked: dict[str, object]) -> bytes:
        messages = asked["messages"]
        assert isinstance(messages, list)
        text = messages[-1]["content"]
        if POISON in text:
            note("poison")
            os.kill(os.getpid(), signal.SIGKILL)
        note("chat")
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": "c", "object": "chat.completion", "created": 0, "model": asked["model"]}
        return json.dumps({**told, "choices": [choice], "usage": usage}).encode()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if SLOW_POISON.encode() in body:
                    await die_speaking(writer)
                status, said = await self.route(head.split(" ")[1], body)
                kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said)
                writer.write(b"HTTP/1.1 %d X\r\n%b%b" % (status, kind, said))
        writer.close()


async def die_speaking(writer: asyncio.StreamWriter) -> None:
    note("poison")
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    choice = {"index": 0, "delta": {"role": "assistant", "content": "I feel"}, "finish_reason": None}
    event = b"data: %b\n\n" % json.dumps({**chunk, "choices": [choice]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"%x\r\n%b\r\n" % (len(event), event))
    await writer.drain()
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def note(what: str) -> None:
    os.write(2, what.encode() + b"\n")


async def serve(port: int, node: HollowNode) -> None:
    server = await asyncio.start_server(node.answer, "127.0.0.1", port, backlog=2048)
    async with server:
        await server.serve_forever()


def main(args: list[str]) -> None:
    """For the nest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--holds", action="append", default=[])
    parser.add_argument("--load-s", type=float, default=0.5)
    parser.add_argument("--fails", action="store_true")
    asked = parser.parse_args(args)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(asked.port, HollowNode(asked.holds, asked.load_s, asked.fails)))
