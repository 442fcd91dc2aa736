"""kill -9 and full disks: what was acknowledged is there, what was cut off says so, the rest goes on."""

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from responding import Asking, ask, text_of

from ganglion.server.life.storage import StoreTarget
from support.disks import mounted, why_no_mounts
from support.ports import free_port
from support.responses_invariants import check
from support.waiting import until

KILLS = 20
CLIENTS = 6
START_S = 2.0


class Nursery:
    """Starts servers on one home and one port, one after the other."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path) -> None:
        self._process = process
        self._home = home
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> int:
        """The pid of a server that answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._home} {self._port}\n".encode())
        pid = int(await self._process.stdout.readline())
        async with httpx.AsyncClient(base_url=self.url) as http, asyncio.timeout(20):
            while True:
                with suppress(httpx.TransportError):
                    if (await http.get("/health/ready")).status_code == 200:
                        return pid
                await asyncio.sleep(0.005)

    async def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"gone\n"


@pytest.fixture
async def nursery(tmp_path: Path) -> AsyncIterator[Nursery]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).with_name("nursery.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    yield Nursery(process, tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


class Load:
    """Clients that ask without end, and what they were told."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=10)
        self.acknowledged: dict[str, Any] = {}
        self.begun: dict[str, list[Any]] = {}

    async def ask(self, client: int) -> None:
        """Ask for streams, whole answers and background runs in turn, until the server is gone."""
        with suppress(httpx.TransportError):
            for number in range(client, 10_000):
                kind = number % 3
                fields = ({"stream": True}, {}, {"stream": True, "background": True})[kind]
                body = ask(f"client {client} asks {number} " + "and " * 100, **fields)
                if kind == 1:
                    whole = (await self._http.post("/v1/responses", json=body)).json()
                    self.acknowledged[whole["id"]] = whole
                else:
                    await self._stream(body)

    async def _stream(self, body: dict[str, object]) -> None:
        async with self._http.stream("POST", "/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if event["type"] == "response.created":
                    heard = self.begun.setdefault(event["response"]["id"], [])
                heard.append(event)
                if event["type"] == "response.completed":
                    self.acknowledged[event["response"]["id"]] = event["response"]

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def load_on(url: str) -> AsyncIterator[Load]:
    load = Load(url)
    asking = [asyncio.create_task(load.ask(client)) for client in range(CLIENTS)]
    try:
        yield load
        await asyncio.gather(*asking)
    finally:
        for each in asking:
            each.cancel()
        await load.close()


async def verify(url: str, load: Load) -> int:
    """Hold the server to what it said before it died; how many responses it had not finished."""
    interrupted = 0
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        asking = Asking(http)
        for response_id, told in load.acknowledged.items():
            assert await asking.get(response_id) == told, "it was acknowledged"
        for response_id in load.begun.keys() - load.acknowledged.keys():
            kept = await asking.get(response_id)
            assert kept["status"] in ("failed", "completed")
            if kept["status"] == "failed":
                assert kept["error"]["reason"] == "interrupted"
                interrupted += 1
            if kept["background"]:
                heard = load.begun[response_id]
                whole = await asking.resume(response_id)
                assert whole[-1]["response"] == kept
                assert heard[: len(whole) - 2] == whole[: len(heard)][: len(whole) - 2]
                (*_, last) = await asking.resume(response_id, heard[-1]["sequence_number"])
                assert last["response"] == kept
    return interrupted


@pytest.mark.timeout(120)
async def test_twenty_kills_under_load_lose_nothing_that_was_acknowledged(nursery: Nursery, tmp_path) -> None:
    chance = random.Random(31)
    acknowledged, interrupted = 0, 0
    pid = await nursery.start()
    for _ in range(KILLS):
        async with load_on(nursery.url) as load:
            await asyncio.sleep(chance.uniform(0.05, 0.35))
            await nursery.kill(pid)
        began_s = time.monotonic()
        pid = await nursery.start()
        assert time.monotonic() - began_s < START_S
        interrupted += await verify(nursery.url, load)
        acknowledged += len(load.acknowledged)
    await nursery.kill(pid)
    assert acknowledged > KILLS, "hardly anything was asked"
    assert interrupted > KILLS // 2, "hardly anything was cut off"
    with closing(sqlite3.connect(tmp_path / "data" / "ganglion.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        unfinished = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
        assert connection.execute(unfinished).fetchone() == (0,)


async def test_a_command_that_a_person_types_keeps_and_starts_in_time(tmp_path) -> None:
    command = [sys.executable, "-m", "ganglion.cli.main", "serve", "--engine", "echo", "--port", "0"]
    environment = {**os.environ, "GANGLION_HOME": str(tmp_path)}
    kept: Any = None
    starts_s: list[float] = []
    for _ in range(3):
        began_s = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        assert process.stderr is not None
        async with asyncio.timeout(30):
            while b"listens on" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        starts_s.append(time.monotonic() - began_s)
        url = line.split(b"listens on ")[1].split()[0].decode()
        async with httpx.AsyncClient(base_url=url) as http:
            asking = Asking(http)
            if kept is None:
                kept = await asking.stream("remember")
            else:
                assert await asking.get(kept["id"]) == kept
        process.kill()
        await process.wait()
    assert min(starts_s) < START_S


@pytest.mark.skipif(why_no_mounts() is not None, reason=str(why_no_mounts()))
async def test_a_full_disk_is_told_and_everything_else_goes_on(serving, tmp_path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none") as disk:
        async with serving(storage=StoreTarget(disk / "ganglion.db")) as served:
            asking = Asking(served.http)
            before = await asking.stream("before")
            body = ask("!echo delay=0.05\n" + "slow " * 12, stream=True)
            running = asyncio.create_task(asking.call("POST", "/v1/responses", body))
            background = await asking.create("!echo delay=0.05\n" + "slow " * 12, background=True)
            await until(lambda: served.slots_used() == 2)
            await asyncio.sleep(0.2)
            filler = await asyncio.to_thread(fill, disk)
            for fields in ({"stream": True}, {}, {"background": True}):
                refused = await asking.call("POST", "/v1/responses", ask("x" * 20_000, **fields))
                assert (refused.status_code, refused.json()["error"]["code"]) == (507, "storage_full")
            assert (await asking.error("POST", "/v1/conversations", {"metadata": {"a": "b" * 500}}))[0] == 507
            assert text_of(await asking.stream("hi", store=False)) == "hi"
            assert await asking.get(before["id"]) == before
            failed = check((await running).content)
            assert (failed["status"], failed["error"]["reason"]) == ("failed", "storage_full")
            filler.unlink()
            assert await asking.until(failed["id"], "failed") == failed
            ended = await asking.until(background["id"], "failed", "completed")
            assert (await asking.resume(background["id"]))[-1]["response"] == ended
            after = await asking.stream("after")
            assert await asking.get(after["id"]) == after
        async with serving(storage=StoreTarget(disk / "ganglion.db")) as served:
            assert await Asking(served.http).get(after["id"]) == after


def fill(disk: Path) -> Path:
    """Leave no room on a disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler
