"""Ten hostile callers with one key, through real sockets: another key's request takes its turn among them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model
from support.waiting import until

pytestmark = pytest.mark.model

HOSTILE, NEIGHBOUR = "sk-hostile-0123456789", "sk-neighbour-0123456789"
COUNTING = "/v1/messages/count_tokens"
LINE = "Sphinx of black quartz, judge my vow; 0123456789 times over. "


@pytest.fixture
def callers(serving) -> Callable[[], object]:
    @asynccontextmanager
    async def start() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
        found = embedded_model()
        settings = EngineSettings("m", context=1024, kv_tokens=4096, parallel=4)
        engine = LlamaEngine(read_facts(found.path), settings)
        async with serving(engine, api_keys=(HOSTILE, NEIGHBOUR)) as served:
            await until(lambda: engine.models()[0].status == "loaded", 60)
            clients = [
                httpx.AsyncClient(base_url=served.url, timeout=60, headers={"authorization": f"Bearer {key}"})
                for key in (HOSTILE, NEIGHBOUR)
            ]
            async with clients[0] as hostile, clients[1] as neighbour:
                yield hostile, neighbour

    return start


async def ended_meanwhile(
    hostile: list[Awaitable[object]], neighbour: Callable[[], Awaitable[object]]
) -> int:
    """How much of the hostile work ended between the neighbour's coming and its answer."""
    tasks = [asyncio.ensure_future(each) for each in hostile]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    before = sum(task.done() for task in tasks)
    await neighbour()
    ended = sum(task.done() for task in tasks) - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return ended


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1} | fields


def schema(number: int) -> dict[str, object]:
    """Takes all the time that a format may take to compile."""
    patterns = [{"type": "string", "pattern": f"^.*x{{{each + number}}}.*y$"} for each in range(100)]
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": {"allOf": patterns}}}


async def test_each_keys_formats_and_texts_wait_for_their_own(callers) -> None:
    async with callers() as (hostile, neighbour):

        async def answered() -> None:
            asked = chat("hello", response_format={"type": "json_object"})
            assert (await neighbour.post("/v1/chat/completions", json=asked)).status_code == 200

        async def counted() -> None:
            assert (await neighbour.post(COUNTING, json=chat(LINE * 3_000))).status_code == 200

        await answered()
        formats = [
            hostile.post("/v1/chat/completions", json=chat("hello", response_format=schema(number)))
            for number in range(10)
        ]
        assert await ended_meanwhile(formats, answered) <= 2
        texts = [hostile.post(COUNTING, json=chat(LINE * 3_000)) for _ in range(10)]
        assert await ended_meanwhile(texts, counted) <= 4, "one in the tokenizer, and some on their way back"
        long = [hostile.post("/tokenize", json={"model": "m", "prompt": LINE * 60_000}) for _ in range(3)]
        tasks = [asyncio.ensure_future(each) for each in long]
        await asyncio.sleep(0.3)
        await answered()
        assert not any(task.done() for task in tasks), "a prompt does not wait for what is hardly one"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
