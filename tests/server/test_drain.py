"""Leaving: the first signal finishes what runs, the second does not wait."""

import asyncio
import json
import signal
import sys
import textwrap

import httpx
import pytest

from ganglion.core.errors import LoadFailed, ShuttingDown
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.bind import StartRefused
from ganglion.server.gate import Gate
from ganglion.server.life.serve import serve
from ganglion.server.settings import ServerSettings

PROGRAM = textwrap.dedent("""
    import asyncio, sys
    from ganglion.engines.echo.engine import EchoEngine, EchoSettings
    from ganglion.server.life.serve import serve
    from ganglion.server.settings import ServerSettings
    settings = ServerSettings(port=0, drain_timeout_s=float(sys.argv[1]))
    engine = EchoEngine(EchoSettings(allow_directives=True))
    asyncio.run(serve(engine, settings, on_listening=lambda url: print(url, flush=True)))
""")


async def start(drain_s: float) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(drain_s), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
    return process, url


def chat(content: str, **fields: object) -> dict[str, object]:
    return {"model": "echo", "messages": [{"role": "user", "content": content}]} | fields


async def begun(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(5):
        while not (await http.get("/health")).json()["models"][0]["in_flight"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_sigterm_finishes_what_runs_refuses_what_comes_and_exits() -> None:
    process, url = await start(10)
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        body = chat("!echo delay=0.05\n" + "a " * 20, stream=True)
        running = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await begun(http)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        refused = await http.post("/v1/chat/completions", json=chat("late"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("15", "close")
        assert (await running).text.endswith("data: [DONE]\n\n")
    assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_what_outlasts_the_drain_is_told_why_it_ends() -> None:
    process, url = await start(0.2)
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        body = chat("!echo delay=0.05 unbounded=1\na", stream=True)
        running = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await begun(http)
        process.send_signal(signal.SIGINT)
        last = (await running).text.rstrip().rsplit("\n\n", 1)[1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_a_second_signal_does_not_wait() -> None:
    process, url = await start(60)
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        body = chat("!echo delay=0.05 unbounded=1\na", stream=True)
        running = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await begun(http)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 3) == 0
        await asyncio.gather(running, return_exceptions=True)


async def test_an_engine_that_cannot_open_ends_the_server_with_its_reason() -> None:
    engine = EchoEngine(EchoSettings(open_error=LoadFailed("not a model")))
    with pytest.raises(LoadFailed, match="not a model"):
        await serve(engine, ServerSettings(port=0))


async def test_a_certificate_that_is_not_there_is_told_before_anything_opens() -> None:
    engine = EchoEngine()
    with pytest.raises(StartRefused, match="TLS certificate"):
        await serve(engine, ServerSettings(port=0, tls_cert="/nowhere.pem", tls_key="/nowhere.key"))
    assert engine.models()[0].status == "unloaded"


async def test_an_engine_that_was_being_opened_before_is_closed_when_the_server_does_not_start() -> None:
    engine = EchoEngine()
    opening = asyncio.create_task(engine.open())
    await opening
    assert engine.models()[0].status == "loaded"
    settings = ServerSettings(port=0, tls_cert="/nowhere.pem", tls_key="/nowhere.key")
    with pytest.raises(StartRefused, match="TLS certificate"):
        await serve(engine, settings, opening=opening)
    assert engine.models()[0].status == "unloaded"


async def test_the_gate_counts_and_says_when_it_is_empty() -> None:
    gate = Gate(2)
    with gate.admit():
        assert gate.in_flight == 1
        gate.drain()
        with pytest.raises(ShuttingDown), gate.admit():
            pass
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gate.idle(), 0.01)
    await asyncio.wait_for(gate.idle(), 0.1)
