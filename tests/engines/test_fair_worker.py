"""What a worker does before a request's turn is bounded, and takes turns between tenants."""

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from ganglion.core.engine import EmbedRequest
from ganglion.core.errors import ContextLengthExceeded, InvalidRequest
from ganglion.core.events import Event, Failed, Finished
from ganglion.core.request import (
    ChatPrompt,
    Constraint,
    JsonSchema,
    JsonValue,
    Message,
    Request,
    TextPrompt,
    TokenPrompt,
)
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

CONTEXT = 2048
# Not one word of it is remembered, so that each costs the tokenizer its time.
LINE = "Sphinx of black quartz, judge my vow; 0123456789 times over. "


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaEngine]:
    found = embedded_model()
    settings = EngineSettings("m", context=CONTEXT, kv_tokens=2 * CONTEXT, parallel=4)
    opened = LlamaEngine(read_facts(found.path), settings)
    await opened.open()
    yield opened
    await opened.close()


def chat(text: str, tenant: str, constraint: Constraint | None = None) -> Request:
    prompt = ChatPrompt((Message("user", text),))
    return Request("r", "m", prompt, tenant=tenant, constraint=constraint, max_tokens=1)


def reading(text: str, tenant: str) -> Request:
    return Request("r", "m", TextPrompt(text), tenant=tenant)


async def last_of(engine: LlamaEngine, request: Request) -> Event:
    return [event async for event in engine.generate(request)][-1]


def worker_took_s(engine: LlamaEngine) -> float:
    process_id = engine.tokens.supervisor.process_id
    assert process_id is not None
    times = psutil.Process(process_id).cpu_times()
    return times.user + times.system


class Tally:
    """Counts what ended."""

    def __init__(self) -> None:
        self.count = 0

    async def counted(self, work: "asyncio.Task[object]") -> None:
        await asyncio.wait({work})
        self.count += 1


async def test_chats_that_could_never_fit_are_refused_without_being_tokenized(engine: LlamaEngine) -> None:
    await last_of(engine, chat("hello", "neighbour"))
    before_s = worker_took_s(engine)
    ends = await asyncio.gather(*(last_of(engine, chat(LINE * 120_000, "hostile")) for _ in range(5)))
    for end in ends:
        assert isinstance(end, Failed)
        assert isinstance(end.error, ContextLengthExceeded)
        assert "at least" in end.error.message
        assert end.error.extras["max"] == CONTEXT
    assert worker_took_s(engine) - before_s < 1.0, "tokenizing one of them takes three seconds"


async def test_a_small_text_does_not_wait_for_large_ones(engine: LlamaEngine) -> None:
    hostile = [asyncio.create_task(engine.read(reading(LINE * 30_000, "hostile"))) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert isinstance(await last_of(engine, chat("hello", "neighbour")), Finished)
    assert not any(task.done() for task in hostile)
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)


@pytest.mark.parametrize(("size", "count"), [(900, 20), (1_500, 12)], ids=["prompts", "long prompts"])
async def test_tenants_take_turns_in_tokenizing(engine: LlamaEngine, size: int, count: int) -> None:
    tally = Tally()
    hostile = [asyncio.create_task(engine.read(reading(LINE * size, "hostile"))) for _ in range(count)]
    counting = [asyncio.create_task(tally.counted(task)) for task in hostile]  # type: ignore[arg-type]
    await hostile[0]
    before = tally.count
    await engine.read(reading(LINE * size, "neighbour"))
    assert tally.count - before <= 3, "what was begun, and one at most for each turn of its own"
    await asyncio.gather(*counting)


async def test_nobody_waits_for_the_tenant_whose_text_first_has_the_vocabulary_measured(
    engine: LlamaEngine,
) -> None:
    engine.tokens._floor = None
    tally = Tally()
    hostile = [asyncio.create_task(engine.read(reading(LINE * 1_500, "hostile"))) for _ in range(12)]
    counting = [asyncio.create_task(tally.counted(task)) for task in hostile]  # type: ignore[arg-type]
    await hostile[0]
    measuring = asyncio.create_task(last_of(engine, chat(LINE * 200, "hostile")))
    await asyncio.sleep(0)
    before = tally.count
    assert isinstance(await last_of(engine, chat(LINE * 200, "neighbour")), Failed)
    assert tally.count - before <= 4, "what was begun, one for the measuring, and some on their way back"
    await asyncio.gather(*counting, measuring)


async def test_tenants_take_turns_in_making_vectors(engine: LlamaEngine) -> None:
    def embedding(tenant: str) -> EmbedRequest:
        return EmbedRequest("r", "m", (TokenPrompt(tuple(range(100, 700))),), tenant=tenant)

    tally = Tally()
    hostile = [asyncio.create_task(engine.embed(embedding("hostile"))) for _ in range(12)]
    counting = [asyncio.create_task(tally.counted(task)) for task in hostile]  # type: ignore[arg-type]
    await hostile[0]
    before = tally.count
    await engine.embed(embedding("neighbour"))
    assert tally.count - before <= 4, "the round that was begun, and what shared one with its own"
    await asyncio.gather(*counting)


async def test_tenants_take_turns_in_turning_tokens_into_text(engine: LlamaEngine) -> None:
    tokens = tuple(range(100, 15_100))
    tally = Tally()
    hostile = [asyncio.create_task(engine.detokenize("m", tokens, tenant="hostile")) for _ in range(40)]
    counting = [asyncio.create_task(tally.counted(task)) for task in hostile]  # type: ignore[arg-type]
    await hostile[0]
    before = tally.count
    await engine.detokenize("m", tokens, tenant="neighbour")
    assert tally.count - before <= 10, "what was begun, one for its own turn, and some on their way back"
    await asyncio.gather(*counting)


async def test_a_text_of_markers_is_refused_instead_of_keeping_the_tokenizer_for_minutes(
    engine: LlamaEngine,
) -> None:
    before_s = worker_took_s(engine)
    with pytest.raises(InvalidRequest, match="control tokens"):
        await engine.read(reading("<|im_start|>" * 200_000, "hostile"))
    assert worker_took_s(engine) - before_s < 2.0
    assert len((await engine.read(reading("<|im_start|>" * 5_000, "honest"))).tokens) >= 5_000
    assert engine.models()[0].restarts == 0


def slow_schema(number: int) -> JsonSchema:
    """Takes all the time that a format may take to compile."""
    patterns: list[JsonValue] = [
        {"type": "string", "pattern": f"^.*x{{{each + number}}}.*y$"} for each in range(100)
    ]
    return JsonSchema({"allOf": patterns})


async def test_hostile_formats_of_one_tenant_cost_another_one_turn(engine: LlamaEngine) -> None:
    small = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    await last_of(engine, chat("hello", "neighbour", small))  # the vocabulary is read once
    tally = Tally()
    hostile = [
        asyncio.create_task(last_of(engine, chat("hello", "hostile", slow_schema(number))))
        for number in range(16)
    ]
    counting = [asyncio.create_task(tally.counted(task)) for task in hostile]  # type: ignore[arg-type]
    await hostile[0]
    before = tally.count
    other = JsonSchema({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]})
    assert isinstance(await last_of(engine, chat("hello", "neighbour", other)), Finished)
    assert tally.count - before <= 2, "the one that was begun, and one that came to its end meanwhile"
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, *counting, return_exceptions=True)
