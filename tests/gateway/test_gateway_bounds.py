"""A gateway at its limits: as many clients as it may hold, no file descriptor left, a database that fails."""

import asyncio
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from gateways import fleet
from proxy_stage import CHAT, always, answer, get, post, staged
from test_gateway_access import keyed, shown

from ganglion.core.errors import GanglionError
from ganglion.gateway.proxy.descriptors import DescriptorWatch
from ganglion.gateway.proxy.listener import ProxySettings
from ganglion.store.opening import open_access, open_store
from support.raw_http import read_response
from support.waiting import until


async def test_the_number_of_clients_is_a_setting() -> None:
    async with staged(always(answer(b"{}")), settings=ProxySettings(max_connections=3)) as stage:
        kept = [await asyncio.open_connection("127.0.0.1", stage.port) for _ in range(3)]
        await until(lambda: len(stage.front.connections) == 3)
        refused = await stage.ask(get("/health/live"))
        assert refused.status == 503 and b"as many connections as it may" in refused.body
        kept.pop()[1].close()
        await until(lambda: len(stage.front.connections) < 3)
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 200
        for _, writer in kept:
            writer.close()


@pytest.mark.timeout(60)
async def test_a_gateway_without_descriptors_says_so_and_recovers(tmp_path: Path) -> None:
    """A process with room for 64 files, and more clients than that."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from ganglion.cli.main import main; sys.argv = ['ganglion', *sys.argv[1:]]; main()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", limited, "gateway", "--port", "0", "--no-grpc",
        env={**os.environ, "GANGLION_HOME": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        port, said = 0, b""
        async with asyncio.timeout(30):
            while not port:
                line = await process.stderr.readline()
                assert line, "it ended"
                found = re.search(rb"listens on http://127\.0\.0\.1:(\d+)", line)
                port = int(found[1]) if found else 0
        clients = []
        for _ in range(80):
            with suppress(OSError):
                clients.append(await asyncio.open_connection("127.0.0.1", port))
        async with asyncio.timeout(15):
            while b"no file descriptor is left" not in said:
                said += await process.stderr.readline()
        for _, writer in clients:
            writer.transport.abort()
        async with asyncio.timeout(15):
            while b"there are file descriptors again" not in said:
                said += await process.stderr.readline()
        assert said.count(b"no file descriptor is left") == 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/health/live").replace(b"host: here", b"host: localhost"))
        assert (await read_response(reader)).status == 200
        writer.close()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


def test_it_is_said_once_a_minute_for_as_long_as_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    moments = iter((0.0, 1.0, 59.0, 60.0, 61.0))
    watch = DescriptorWatch(lambda: next(moments))
    watch.look()
    assert not caplog.records
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        for _ in range(5):
            watch.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(lowest)
    assert len(caplog.records) == 2
    watch.look()
    watch.look()
    assert len(caplog.records) == 3


@pytest.mark.timeout(60)
async def test_a_client_never_hears_where_the_database_lies(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, few={"tokens_per_minute": 10_000})
    place = tmp_path / "gateway.db"
    async with fleet(storage=storage) as gateway:
        first = await gateway.http.post(
            "/v1/responses", json={"model": "echo", "input": "hello"}, headers=shown("few")
        )
        assert first.status_code == 200
        size = place.stat().st_size
        for path in (place, place.with_name("gateway.db-wal")):
            if path.exists():
                path.write_bytes(b"not a database" * (path.stat().st_size // 14 + 1))
        assert size
        said = ""
        for number in range(12):
            body = {"model": "echo", "input": f"hello {number}", "previous_response_id": first.json()["id"]}
            answered = await gateway.http.post("/v1/responses", json=body, headers=shown("few"))
            if answered.status_code >= 500:
                said += answered.text
        assert said and str(tmp_path) not in said and "gateway.db" not in said


async def test_an_operator_hears_where_it_lies_and_clients_do_not(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database at all, however long one looks at it" * 100)
    for opening in (open_access(broken), open_store(broken), open_store(tmp_path)):
        with pytest.raises(GanglionError) as refused:
            await opening
        assert str(tmp_path) in str(refused.value) and str(tmp_path) not in refused.value.message
