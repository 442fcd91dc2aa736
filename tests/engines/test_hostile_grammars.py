"""Formats made to hurt: each costs its own request an answer within two seconds, and nobody else anything."""

import asyncio
import time

import psutil
import pytest
from hostile_grammars import corpus

from ganglion.core.errors import InvalidValue
from ganglion.core.events import Delta, Failed, Finished
from ganglion.core.request import ChatPrompt, Constraint, Message, Request, Stop
from ganglion.core.sampling import Sampling
from ganglion.engines.grammar_dry_run import TOO_LONG
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model

pytestmark = pytest.mark.model

LIMIT_S = 2.0
CASES = corpus()


def request(constraint: Constraint | None, max_tokens: int) -> Request:
    return Request(
        id="r",
        model="m",
        prompt=ChatPrompt((Message("user", "Hi"),)),
        sampling=Sampling(temperature=1.0, seed=1),
        stop=Stop(ignore_eos=constraint is None),
        constraint=constraint,
        max_tokens=max_tokens,
    )


async def end_of(engine: LlamaEngine, asked: Request) -> tuple[Finished | Failed, float]:
    """The last event, and how long it took to the first that decides: the first text, or the refusal."""
    began_s = time.monotonic()
    decided_s = 0.0
    last: object = None
    async for event in engine.generate(asked):
        last = event
        if not decided_s and isinstance(event, Delta | Finished | Failed):
            decided_s = time.monotonic() - began_s
    assert isinstance(last, Finished | Failed)
    return last, decided_s


async def test_two_hundred_hostile_formats_harm_nobody():
    found = embedded_model()
    engine = LlamaEngine(
        read_facts(found.path), EngineSettings("m", context=4096, kv_tokens=8192, parallel=4)
    )
    assert len(CASES) >= 200
    await engine.open()
    try:
        neighbour = asyncio.create_task(end_of(engine, request(None, 3000)))
        slow: list[tuple[str, float]] = []
        refused: list[str] = []
        for name, constraint in CASES:
            end, took_s = await end_of(engine, request(constraint, 2))
            if took_s > LIMIT_S:
                slow.append((name, took_s))
            if isinstance(end, Failed):
                assert type(end.error) is InvalidValue, (name, end.error)
                assert len(end.error.message) < 600, name
                refused.append(end.error.message)
        assert slow == []
        assert len(refused) > len(CASES) // 2
        assert sum(TOO_LONG in message for message in refused) >= 2, "some are only stopped by the clock"
        neighbour.cancel()
        end, _ = await end_of(engine, request(None, 4))
        assert isinstance(end, Finished)
        assert engine.models()[0].restarts == 0
        assert await busy_s(engine) < 0.2
    finally:
        await engine.close()
    assert not psutil.Process().children(recursive=True)


async def busy_s(engine: LlamaEngine, span_s: float = 0.5) -> float:
    """Processor time that the worker and its children take while nothing is asked of them."""
    await asyncio.sleep(0.2)
    process_id = engine.tokens.supervisor.process_id
    assert process_id is not None
    tree = [psutil.Process(process_id), *psutil.Process(process_id).children(recursive=True)]
    before = sum(sum(each.cpu_times()[:2]) for each in tree)
    await asyncio.sleep(span_s)
    return sum(sum(each.cpu_times()[:2]) for each in tree) - before
