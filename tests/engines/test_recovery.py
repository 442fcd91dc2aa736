"""What requests see of an engine whose worker is killed, stopped and poisoned; real processes, no model."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from brief_worker import CRASH, HANG, JAM

from ganglion.core.errors import EngineFailed, RequestQuarantined
from ganglion.core.events import Delta, Event, Failed, Finished
from ganglion.core.grammar import Grammar
from ganglion.core.model import ModelFacts
from ganglion.core.request import Request, TextPrompt
from ganglion.engines.limits import WorkerLimits
from ganglion.engines.llama import engine as module
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.settings import LlamaSettings

FACTS = ModelFacts(
    path="none",
    size_bytes=0,
    modified_s=0,
    architecture="none",
    name="none",
    context_length=4096,
    block_count=1,
    kv_values_per_token=1,
    vocabulary_size=1000,
)
LIMITS = WorkerLimits(stop_s=0.5, backoff_s=(0.01,) * 3, healthy_s=0.0)
WATCHFUL = replace(LIMITS, hang_s=0.3, silence_s=0.5, ping_s=0.05)
TOLD_S = 2.0
"""How long after a death everybody must know."""
POISON, STONE = chr(CRASH), chr(HANG)


@pytest.fixture(autouse=True)
def beside_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(module, "WORKER", "brief_worker")


@dataclass
class Answer:
    """One request's stream as far as it came, checked against the grammar."""

    events: list[Event] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended_s: float = 0.0

    @property
    def error(self) -> type[Exception] | None:
        last = self.events[-1]
        assert isinstance(last, Finished | Failed)
        return type(last.error) if isinstance(last, Failed) else None

    async def receive(self, engine: LlamaEngine, text: str, max_tokens: int) -> "Answer":
        grammar = Grammar()
        request = Request("r", "m", TextPrompt(text), max_tokens=max_tokens)
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                grammar.feed(event)
                self.events.append(event)
                if isinstance(event, Delta):
                    self.started.set()
        grammar.check_ended()
        self.ended_s = time.monotonic()
        return self


async def answered(engine: LlamaEngine, text: str, max_tokens: int = 5) -> Answer:
    return await Answer().receive(engine, text, max_tokens)


class Crowd:
    """Some streams that go on until they are ended."""

    def __init__(self, engine: LlamaEngine, *texts: str) -> None:
        self.answers = [Answer() for _ in texts]
        self._tasks = [
            asyncio.create_task(answer.receive(engine, text, 4000))
            for answer, text in zip(self.answers, texts, strict=True)
        ]

    async def started(self) -> None:
        await asyncio.gather(*(answer.started.wait() for answer in self.answers))

    async def ended(self, timeout_s: float = 10.0) -> list[Answer]:
        async with asyncio.timeout(timeout_s):
            return await asyncio.gather(*self._tasks)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def opened(limits: WorkerLimits = LIMITS) -> AsyncIterator[LlamaEngine]:
    engine = LlamaEngine(FACTS, LlamaSettings("m", limits=limits))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()
        assert not psutil.Process().children(), "no process is left, dead or alive"


def worker_of(engine: LlamaEngine) -> int:
    process_id = engine._supervisor.process_id
    assert process_id is not None
    return process_id


def restarts_of(engine: LlamaEngine) -> int:
    return engine.models()[0].restarts


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not holds():  # noqa: ASYNC110 - it is what an operator sees
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("number", "limits", "told_s"),
    [
        (signal.SIGKILL, LIMITS, TOLD_S),
        (signal.SIGSEGV, LIMITS, TOLD_S),
        (signal.SIGSTOP, WATCHFUL, WATCHFUL.silence_s + TOLD_S),
    ],
)
async def test_every_stream_is_told_of_each_of_twenty_deaths_and_the_engine_is_ready_again(
    number: signal.Signals, limits: WorkerLimits, told_s: float
) -> None:
    chance = random.Random(number)
    async with opened(limits) as engine:
        await answered(engine, "warm up")
        open_files = psutil.Process().num_fds()
        for turn in range(20):
            crowd = Crowd(engine, *(f"{turn} {each}" for each in range(4)))
            await asyncio.sleep(chance.random() * 0.05)  # while it tokenizes, waits, or runs
            os.kill(worker_of(engine), number)
            killed_s = time.monotonic()
            for answer in await crowd.ended():
                assert answer.error is EngineFailed
                assert answer.ended_s - killed_s < told_s
            async with asyncio.timeout(5.0):
                assert (await answered(engine, f"{turn} again")).error is None
        assert restarts_of(engine) == 20
        assert (engine._ward.inside, engine._ward.queued) == (0, 0)
        assert psutil.Process().num_fds() <= open_files


async def test_a_poisonous_request_kills_two_workers_and_never_a_third() -> None:
    async with opened() as engine:
        first = Crowd(engine, "a neighbour", "another")
        await first.started()
        assert (await answered(engine, POISON)).error is EngineFailed
        assert [answer.error for answer in await first.ended()] == [EngineFailed] * 2

        second = Crowd(engine, "a stranger")
        await second.started()
        assert restarts_of(engine) == 1
        again = asyncio.create_task(answered(engine, POISON))
        await asyncio.sleep(0.1)
        later = asyncio.create_task(answered(engine, "one who came later"))
        await asyncio.sleep(0.1)
        assert not again.done(), "it waits until it is alone"
        assert not later.done()
        assert engine.models()[0].queued == 2
        await second.leave()
        assert (await again).error is EngineFailed
        assert (await later).error is None
        assert restarts_of(engine) == 2

        third = Crowd(engine, "a third")
        await third.started()
        refused = await answered(engine, POISON)
        assert refused.error is RequestQuarantined
        assert [type(event) for event in refused.events] == [Failed]
        await third.leave()
        assert (await answered(engine, "a neighbour")).error is None, "a suspect, but innocent"
        assert restarts_of(engine) == 2


async def test_a_request_that_hangs_is_caught_though_its_client_left_long_before() -> None:
    async with opened(WATCHFUL) as engine:
        await answered(engine, "warm up")
        for deaths in (1, 2):
            crowd = Crowd(engine, STONE)
            await crowd.started()
            await asyncio.sleep(0.05)
            await crowd.leave()
            await eventually(lambda least=deaths: restarts_of(engine) >= least)
        assert (await answered(engine, STONE)).error is RequestQuarantined
        assert (await answered(engine, "anything else")).error is None
        assert restarts_of(engine) == 2


async def test_those_who_hang_with_a_neighbour_are_told_what_happened() -> None:
    async with opened(WATCHFUL) as engine:
        crowd = Crowd(engine, "a neighbour", STONE)
        for answer in await crowd.ended():
            assert answer.error is EngineFailed
            assert isinstance(answer.events[-1], Failed)
            assert "made no step for" in answer.events[-1].error.message
        assert (await answered(engine, "next")).error is None


async def test_a_request_that_only_tokenizes_is_told_as_fast() -> None:
    async with opened() as engine:
        crowd = Crowd(engine, JAM, "waits behind it")
        await asyncio.sleep(0.1)
        os.kill(worker_of(engine), signal.SIGKILL)
        for answer in await crowd.ended(TOLD_S):
            assert answer.error is EngineFailed
        assert (await answered(engine, "next")).error is None


async def test_who_waited_outside_the_worker_is_not_suspected() -> None:
    async with opened() as engine:
        neighbour = Crowd(engine, "a neighbour")
        await neighbour.started()
        assert (await answered(engine, POISON)).error is EngineFailed
        await neighbour.ended()
        crowd = Crowd(engine, "long")
        await crowd.started()
        again = asyncio.create_task(answered(engine, POISON))
        await asyncio.sleep(0.1)
        outside = asyncio.create_task(answered(engine, "came later", 4000))
        await asyncio.sleep(0.1)
        await crowd.leave()
        assert (await again).error is EngineFailed
        await eventually(lambda: engine._ward.inside > 0)
        assert (await answered(engine, "beside it")).error is None, "it runs beside others"
        assert not outside.done()
        outside.cancel()
        await asyncio.gather(outside, return_exceptions=True)


async def test_after_too_many_deaths_everybody_is_told_at_once_and_why() -> None:
    async with opened(replace(LIMITS, healthy_s=1000.0, backoff_s=(0.3,))) as engine:
        os.kill(worker_of(engine), signal.SIGSEGV)
        await eventually(lambda: engine.models()[0].status == "recovering")
        waiting = Crowd(engine, "waits for the restart")
        await waiting.started()
        os.kill(worker_of(engine), signal.SIGSEGV)
        [answer] = await waiting.ended()
        assert answer.error is EngineFailed
        await eventually(lambda: engine.models()[0].status == "failed")
        assert engine.models()[0].error == "The worker was killed by SIGSEGV 2 times in a row."
        began_s = time.monotonic()
        assert (await answered(engine, "too late")).error is EngineFailed
        assert time.monotonic() - began_s < 0.5
