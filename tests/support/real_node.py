"""A real node with the real model on a real socket, started as a person starts it, and a client of bytes."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ganglion.registry.hub.embedded import SMOLLM2
from support.raw_http import request_bytes
from support.waiting import until

MODEL = SMOLLM2.id
END_OF_BODY = b"0\r\n\r\n"


@dataclass(frozen=True)
class Node:
    """A running `ganglion serve`."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            body: bytes = response.read()
        return body

    def health(self) -> dict[str, object]:
        """What the node says of its only model."""
        model: dict[str, object] = json.loads(self.get("/health"))["models"][0]
        return model

    def worker(self) -> psutil.Process:
        """The worker process, told by its command line."""
        for child in psutil.Process(self.process.pid).children():
            if "ganglion.engines.llama.worker.main" in child.cmdline():
                return child
        raise AssertionError("no worker is running")

    def family(self) -> list[psutil.Process]:
        """Every process below the node's own."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def gauge(self, name: str) -> float:
        found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics").decode(), re.MULTILINE)
        assert found is not None, f"no metric {name}"
        return float(found[1])


@contextmanager
def running_node(home: Path, *flags: str, **settings: str) -> Iterator[Node]:
    """Start a node; `settings` are environment variables, and whatever happens it is gone afterwards."""
    port = () if "--port" in flags else ("--port", "0")
    command = [sys.executable, "-m", "ganglion.cli.main", "serve", *port, *flags]
    environment = {**os.environ, "GANGLION_HOME": str(home), **settings}
    log = home / "node.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment)
    try:
        yield Node(wait_until_ready(process, log), process)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait(5)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path, timeout_s: float = 60.0) -> str:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()
        found = re.search(r"listens on (http://\S+)", log.read_text())
        if found is not None:
            with suppress(OSError), urllib.request.urlopen(found[1] + "/health/ready", timeout=5):
                return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


async def eventually(check: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait for something that has no event; checks run beside the event loop."""
    await until(lambda: asyncio.to_thread(check), within_s, pause_s=0.05)


def ask(text: str = "Tell me a long story.", **fields: object) -> bytes:
    """A whole HTTP request for an answer that goes on until `max_tokens`."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], "ignore_eos": True, **fields}
    return request_bytes("/v1/chat/completions", asked)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


@dataclass
class Answer:
    """What came back for one request, as far as it came."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first text of a stream."""
    head: bytes = b""
    body: bytes = b""
    last_s: float = 0.0

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def frames(self) -> list[bytes]:
        """The events of a stream."""
        return re.findall(rb"data: (.*?)\n\n", self.body)

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.frames[-1:] == [b"[DONE]"]

    @property
    def error(self) -> str:
        """The code of a refusal, or of the frame that ended a stream."""
        document = self.frames[-1] if self.frames else self.body
        code: str = json.loads(document)["error"]["code"]
        return code

    async def receive(self, port: int, request: bytes) -> "Answer":
        """Send a request and read until the answer's end."""
        async with connected(port) as (reader, writer):
            writer.write(request)
            self.head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
            if "content-length" in self.headers:
                self.body = await reader.readexactly(int(self.headers["content-length"]))
                self.last_s = time.monotonic()
                return self
            while more := await reader.read(65536):
                self.body += more
                self.last_s = time.monotonic()
                if re.search(rb'"content":"[^"]', self.body):
                    self.started.set()
                if self.body.endswith(END_OF_BODY):
                    break
        return self


async def answer(node: Node, text: str = "Tell me a long story.", **fields: object) -> Answer:
    """One answer, whole or streamed."""
    return await Answer().receive(node.port, ask(text, **fields))
