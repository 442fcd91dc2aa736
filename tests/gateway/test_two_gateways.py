"""Two gateways on one database and the same nodes: what one keeps, counts or forbids holds at the other."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gateways import Running, echoes, gateway

from ganglion.server.life.storage import StoreTarget
from ganglion.store.opening import open_access

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
ENDLESS = "!echo unbounded=1 delay=0.005\nla "
BETWEEN_US = "between-us"


@pytest.fixture(params=["postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database server, or one file on this machine."""
    return str(request.getfixturevalue("postgres") if request.param == "postgres" else tmp_path / "fleet.db")


@asynccontextmanager
async def two(url: str) -> AsyncIterator[tuple[Running, Running]]:
    """Both over the same two nodes."""
    async with echoes("a", "b", gateway_keys=(BETWEEN_US,)) as specs:
        nodes = [replace(spec, api_key=BETWEEN_US) for spec in specs]
        async with (
            gateway(nodes, storage=StoreTarget(url)) as one,
            gateway(nodes, storage=StoreTarget(url)) as other,
        ):
            yield one, other


async def ganglion(url: str, home: Path, *words: str) -> str:
    """What a command on the gateways' database prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ganglion.cli.main", *words),
        env={**os.environ, "GANGLION_HOME": str(home), "GANGLION_STORE__URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, errors.decode()
    return output.decode().strip()


async def eventually(running: Running, status: int, key: str, within_s: float) -> None:
    """Wait until a key is answered with this status."""
    async with asyncio.timeout(within_s):
        while (await running.http.get("/v1/models", headers=running.as_(key))).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_one_stores_the_other_reads_continues_and_cancels(database: str) -> None:
    async with two(database) as (one, other):
        first = (await one.http.post("/v1/responses", json={"model": "echo", "input": "figs"})).json()
        kept = await other.http.get(f"/v1/responses/{first['id']}")
        assert kept.json() == first
        follow = {"model": "echo", "input": "and dates", "previous_response_id": first["id"]}
        second = (await other.http.post("/v1/responses", json=follow)).json()
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        talk = (await one.http.post("/v1/conversations", json={})).json()
        for number, running in enumerate((one, other, one)):
            body = {"model": "echo", "input": f"turn {number}", "conversation": talk["id"]}
            assert (await running.http.post("/v1/responses", json=body)).status_code == 200
        items = await other.http.get(f"/v1/conversations/{talk['id']}/items", params={"order": "asc"})
        texts = [item["content"][0]["text"] for item in items.json()["data"]]
        assert texts == ["turn 0", "turn 0", "turn 1", "turn 1", "turn 2", "turn 2"]

        endless = {"model": "echo", "input": ENDLESS, "background": True}
        begun = (await one.http.post("/v1/responses", json=endless)).json()
        async with gateway((), storage=StoreTarget(database)) as late:
            # A gateway that starts ends what the dead left behind, and nothing of the living.
            seen = (await late.http.get(f"/v1/responses/{begun['id']}")).json()
            assert seen["status"] in ("queued", "in_progress")
        cancelled = (await other.http.post(f"/v1/responses/{begun['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        async with asyncio.timeout(5):
            while (await one.http.get("/fleet")).json()["nodes"][0]["in_flight"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await one.http.get(f"/v1/responses/{begun['id']}")).json()["status"] == "cancelled"
        assert (await one.http.delete(f"/v1/responses/{first['id']}")).status_code == 200
        assert (await other.http.get(f"/v1/responses/{first['id']}")).status_code == 404


async def test_keys_limits_and_usage_are_one(database: str, tmp_path: Path) -> None:
    cap = 40
    # Fixed windows begin with the full minute: in its last seconds there would be two of them.
    if time.time() % 60 > 55:
        await asyncio.sleep(60 - time.time() % 60)
    key = await ganglion(database, tmp_path, "keys", "create", "shop", "--requests-per-minute", str(cap))
    async with two(database) as (one, other):
        assert (await one.http.get("/v1/models")).status_code == 401

        async def ask(running: Running, number: int) -> int:
            body = CHAT | {"stream": bool(number % 2)}
            answer = await running.http.post("/v1/chat/completions", json=body, headers=running.as_(key))
            return answer.status_code

        asks = (ask(running, number) for number in range(cap) for running in (one, other))
        outcomes = Counter(await asyncio.gather(*asks))
        assert outcomes == {200: cap, 429: cap}
        refused = await other.http.post("/v1/chat/completions", json=CHAT, headers=other.as_(key))
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) <= 60

        access = await open_access(database)
        (stored,) = await access.keys()
        assert await access.revoke(stored.id)
        await asyncio.gather(*(eventually(running, 401, key, 1.0) for running in (one, other)))
        await access.close()
        await asyncio.sleep(0.6)  # usage is written twice a second
        async with asyncio.timeout(5):
            while (line := await used(database, tmp_path))["requests"] < cap:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (line["key"], line["requests"]) == ("shop", cap)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (2 * cap, 2 * cap)


async def used(url: str, home: Path) -> dict[str, Any]:
    (line,) = json.loads(await ganglion(url, home, "usage", "--json"))
    found: dict[str, Any] = line
    return found
