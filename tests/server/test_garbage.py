"""Requests leave nothing behind that only a full collection would find."""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from grpc_calls import connected

from ganglion.server.life.storage import StoreTarget
from ganglion.wire.salience import salience_pb2 as pb

TIMES = 5


@contextmanager
def collected() -> Iterator[Counter[str]]:
    """Counts our own values that are found in circles after the block."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(
            type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("ganglion.")
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def asked(is_streamed: bool) -> list[tuple[str, dict[str, object]]]:
    """Every wire, answered and refused."""
    requests: list[tuple[str, dict[str, object]]] = []
    for model in ("echo", "nobody"):
        for text in ("hello there", "!echo nonsense\nhello", "!echo fail_at=1\nhello there you"):
            messages = [{"role": "user", "content": text}]
            common = {"model": model, "stream": is_streamed}
            requests += [
                ("/v1/chat/completions", {"messages": messages, **common}),
                ("/v1/completions", {"prompt": text, **common}),
                ("/v1/messages", {"messages": messages, "max_tokens": 9, **common}),
                ("/v1/responses", {"input": text, "store": False, **common}),
                ("/v1/responses", {"input": text, **common}),
                ("/api/chat", {"messages": messages, **common}),
            ]
    wrong: list[tuple[str, dict[str, object]]] = [
        ("/v1/chat/completions", {"messages": 1}),
        ("/v1/embeddings", {"model": "nobody", "input": "text"}),
        ("/tokenize", {"model": "nobody", "prompt": "text"}),
        ("/v1/nowhere", {}),
    ]
    return requests + wrong


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_no_request_leaves_a_circle_behind(serving, is_streamed: bool) -> None:
    async with serving(storage=StoreTarget(":memory:"), has_grpc=False) as served:

        async def ask() -> list[int]:
            return [
                (await served.http.post(path, json=body)).status_code for path, body in asked(is_streamed)
            ]

        statuses = await ask()
        assert statuses.count(200) >= 6
        assert sum(status >= 400 for status in statuses) >= 20
        with collected() as found:
            for _ in range(TIMES):
                await ask()
            await served.until_idle()
        assert not found, "none of these is one of ours"


async def test_no_client_that_leaves_leaves_a_circle_behind(serving) -> None:
    async with serving(has_grpc=False) as served:

        async def leave() -> None:
            body = served.chat("!echo delay=1\nhello there you", stream=True)
            with suppress(TimeoutError, httpx.HTTPError):
                async with (
                    asyncio.timeout(0.05),
                    served.http.stream("POST", "/v1/chat/completions", json=body),
                ):
                    await asyncio.sleep(1.0)
            await served.until_idle()

        await leave()
        with collected() as found:
            for _ in range(TIMES):
                await leave()
        assert not found


async def test_no_refused_call_over_grpc_leaves_a_circle_behind(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:

        async def refused() -> None:
            await rpc.refusal("Generate", pb.GenerateRequest(session_id="sess_nobody"))
            await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="nobody"))

        await refused()
        with collected() as found:
            for _ in range(TIMES):
                await refused()
        assert not found
