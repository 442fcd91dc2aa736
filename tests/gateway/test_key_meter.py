"""Answers whose end the front does not hear count against their key all the same."""

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from gateways import Running, fleet
from test_gateway_access import ADMIN, keyed, secret_of, shown

from ganglion.store.opening import open_access

MODEL = {"model": "echo"}


def sdk(gateway: Running, name: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=gateway.url + "/v1", api_key=secret_of(name).decode(), max_retries=0, timeout=20
    )


async def until_taken(gateway: Running, tenant: str, tokens: int) -> None:
    """Wait until the metrics tell that a tenant's answers came to at least so much."""
    mark = f'ganglion_gateway_tokens_total{{kind="completion",model="echo",tenant="{tenant}"}} '
    async with asyncio.timeout(10):
        while True:
            page = (await gateway.http.get("/metrics", headers=gateway.as_(ADMIN))).text
            told = page.partition(mark)[2].partition("\n")[0]
            if told and float(told) >= tokens:
                return
            await asyncio.sleep(0.02)


async def early_in_a_minute() -> None:
    """Wait where the next minute is near, which has caps of its own."""
    if time.time() % 60 > 50:
        await asyncio.sleep(60.1 - time.time() % 60)


async def heard(connection: Any) -> Any:
    """The last event of a response, or an error."""
    async for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event
    raise AssertionError("it ended without a word")


async def leave_one_running(gateway: Running) -> None:
    """Ask for an endless answer in the background, and cancel it when something was said."""
    async with sdk(gateway, "free") as client:
        words = "!echo unbounded delay=0.01\nx"
        endless = await client.responses.create(**MODEL, input=words, background=True, stream=True)
        async for event in endless:
            if event.type == "response.created":
                named = event.response.id
            if event.type == "response.output_text.delta":
                break
        await endless.close()
        assert (await client.responses.cancel(named)).status == "cancelled"


@pytest.mark.timeout(120)
async def test_a_response_in_the_background_takes_of_its_keys_limits(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, few={"requests_per_minute": 2}, free={})
    await early_in_a_minute()
    async with fleet(storage=storage, admin_keys=(ADMIN,)) as gateway, sdk(gateway, "few") as client:
        for words in ("one two three", "four five"):
            begun = await client.responses.create(**MODEL, input=words, background=True)
            async with asyncio.timeout(10):
                while (await client.responses.retrieve(begun.id)).status != "completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        await until_taken(gateway, "tenant-few", 5)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.responses.create(**MODEL, input="six", background=True)
        assert refused.value.code == "rate_limit_exceeded"
        assert int(refused.value.response.headers["retry-after"]) <= 60
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(**MODEL, input="seven")
        bad = {"model": "echo", "input": "x", "background": True, "temperature": "hot"}
        assert (await gateway.http.post("/v1/responses", json=bad, headers=shown("free"))).status_code == 400
        await leave_one_running(gateway)
        await until_taken(gateway, "tenant-free", 1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("path", ["compact", "input_tokens"])
async def test_what_never_runs_in_the_background_is_counted_whatever_it_says(
    tmp_path: Path, path: str
) -> None:
    storage = await keyed(tmp_path, few={"requests_per_minute": 2})
    await early_in_a_minute()
    asked = MODEL | {"input": "one two", "background": True}
    async with fleet(storage=storage, is_strict=False) as gateway:
        answers = [
            await gateway.http.post(f"/v1/responses/{path}", json=asked, headers=shown("few"))
            for _ in range(3)
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


@pytest.mark.timeout(120)
async def test_what_is_asked_inside_a_socket_takes_of_its_keys_limits(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, few={"requests_per_minute": 2, "models": ("echo",)})
    await early_in_a_minute()
    async with (
        fleet(storage=storage, admin_keys=(ADMIN,)) as gateway,
        sdk(gateway, "few") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model="another", input="no")
        error = await heard(connection)
        assert (error.type, error.status, error.error.code) == ("error", 403, "permission_denied")
        for words in ("one two three", "four five"):
            await connection.response.create(**MODEL, input=words)
            assert (await heard(connection)).response.output_text == words
        await until_taken(gateway, "tenant-few", 5)
        await connection.response.create(**MODEL, input="six")
        error = await heard(connection)
        assert (error.type, error.status, error.error.code) == ("error", 429, "rate_limit_exceeded")
        access = await open_access(tmp_path / "gateway.db")
        await access.revoke("key_few")
        await access.close()
        await asyncio.sleep(1.0)
        await connection.response.create(**MODEL, input="seven")
        error = await heard(connection)
        assert (error.type, error.status) == ("error", 401)
