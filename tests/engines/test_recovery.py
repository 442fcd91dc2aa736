"""What requests see of an engine whose worker is killed, stopped and poisoned; real processes, no model."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from brief_worker import CRASH, HANG, JAM

from ganglion.core.errors import EngineFailed, ModelRecovering, RequestQuarantined
from ganglion.core.events import Delta, Event, Failed, Finished
from ganglion.core.grammar import Grammar
from ganglion.core.model import ModelFacts
from ganglion.core.request import Request, TextPrompt
from ganglion.engines.llama import tokens as module
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.isolation import ALONE_S
from ganglion.engines.supervision.watchdog import WorkerLimits
from support.embedded_model import kept_open
from support.handles import no_more_files
from support.waiting import until

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

    async def started_one(self) -> None:
        waits = [asyncio.create_task(answer.started.wait()) for answer in self.answers]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def ended(self, timeout_s: float = 10.0) -> list[Answer]:
        async with asyncio.timeout(timeout_s):
            return await asyncio.gather(*self._tasks)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


HUGE = replace(FACTS, kv_values_per_token=2**40)
"""No machine has room for a second worker of this one."""


@asynccontextmanager
async def opened(limits: WorkerLimits = LIMITS, facts: ModelFacts = FACTS) -> AsyncIterator[LlamaEngine]:
    engine = LlamaEngine(facts, EngineSettings("m", limits=limits), free_memory=2**62)
    async with kept_open(engine):
        yield engine
    assert not psutil.Process().children(), "no process is left, dead or alive"


def worker_of(engine: LlamaEngine) -> int:
    process_id = engine.tokens.supervisor.process_id
    assert process_id is not None
    return process_id


def restarts_of(engine: LlamaEngine) -> int:
    return engine.models()[0].restarts


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
        assert (engine.tokens.queue.inside, engine.tokens.queue.queued) == (0, 0)
        assert psutil.Process().num_fds() <= open_files


async def test_a_poisonous_request_kills_two_workers_and_never_a_third() -> None:
    async with opened() as engine:
        first = Crowd(engine, "a neighbour", "another")
        await first.started()
        assert (await answered(engine, POISON)).error is EngineFailed
        assert [answer.error for answer in await first.ended()] == [EngineFailed] * 2

        second = Crowd(engine, "a stranger")
        await second.started()
        stranger, before = worker_of(engine), len(second.answers[0].events)
        assert restarts_of(engine) == 1
        assert (await answered(engine, POISON)).error is EngineFailed
        assert (await answered(engine, "one who came later")).error is None
        await until(lambda: restarts_of(engine) == 2)
        assert worker_of(engine) == stranger, "it died in a worker of its own"
        await until(lambda: len(second.answers[0].events) > before + 10)
        assert not any(isinstance(event, Failed) for event in second.answers[0].events)

        refused = await answered(engine, POISON)
        assert refused.error is RequestQuarantined
        assert [type(event) for event in refused.events] == [Failed]
        await second.leave()
        assert (await answered(engine, "a neighbour")).error is None, "a suspect, but innocent"
        assert restarts_of(engine) == 2


async def test_a_poisonous_request_kills_no_third_worker_where_there_is_room_for_one_only() -> None:
    async with opened(facts=HUGE) as engine:
        neighbour = Crowd(engine, "a neighbour")
        await neighbour.started()
        assert (await answered(engine, POISON)).error is EngineFailed
        await neighbour.ended()
        stranger = Crowd(engine, "a stranger")
        await stranger.started()
        again = asyncio.create_task(answered(engine, POISON))
        await asyncio.sleep(0.1)
        assert (await answered(engine, "one who came later")).error is None, "nobody waits for it"
        assert not again.done(), "it waits until it is alone"
        await stranger.leave()
        assert (await again).error is EngineFailed
        assert (await answered(engine, POISON)).error is RequestQuarantined
        assert (await answered(engine, "a neighbour")).error is None, "a suspect, but innocent"
        assert restarts_of(engine) == 2


@pytest.mark.parametrize("facts", [FACTS, HUGE])
async def test_after_a_death_nobody_waits_behind_sixteen_suspects(facts: ModelFacts) -> None:
    async with opened(facts=facts) as engine:
        texts = [f"stream {number}" for number in range(16)]
        crowd = Crowd(engine, *texts)
        await crowd.started()
        os.kill(worker_of(engine), signal.SIGKILL)
        assert {answer.error for answer in await crowd.ended()} == {EngineFailed}
        again = Crowd(engine, *texts)  # 4,000 steps each: more than 20 s for one of them
        await again.started_one()
        began_s = time.monotonic()
        for number in range(5):
            assert (await answered(engine, f"another tenant {number}")).error is None
        # Steps of the stand-in take 5 ms; without a second worker one of the five waits for a suspect to go.
        assert time.monotonic() - began_s < ALONE_S + 2.0
        await again.leave()
        assert restarts_of(engine) == 1


async def test_innocent_suspects_finish_one_after_another_and_are_cleared() -> None:
    async with opened() as engine:
        texts = [f"stream {number}" for number in range(16)]
        crowd = Crowd(engine, *texts)
        await crowd.started()
        os.kill(worker_of(engine), signal.SIGKILL)
        await crowd.ended()
        neighbour = Crowd(engine, "another tenant")
        await neighbour.started()
        again = await asyncio.gather(*(answered(engine, text) for text in texts))
        assert [answer.error for answer in again] == [None] * 16
        second = engine.tokens.second.process_id
        assert second is not None
        os.kill(second, signal.SIGKILL)
        beside = await asyncio.gather(*(answered(engine, text) for text in texts))
        assert [answer.error for answer in beside] == [None] * 16, "they run in the first worker again"
        await neighbour.leave()


async def test_a_suspect_that_others_wait_for_in_the_only_worker_is_told_to_come_back() -> None:
    async with opened(facts=HUGE) as engine:
        crowd = Crowd(engine, "a long one")
        await crowd.started()
        os.kill(worker_of(engine), signal.SIGKILL)
        await crowd.ended()
        again = Crowd(engine, "a long one")
        await again.started()
        assert (await answered(engine, "another tenant")).error is None
        [interrupted] = await again.ended()
        assert interrupted.error is ModelRecovering
        assert restarts_of(engine) == 1


async def test_a_second_worker_that_cannot_be_started_leaves_the_suspect_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as engine:
        crowd = Crowd(engine, "a suspect")
        await crowd.started()
        os.kill(worker_of(engine), signal.SIGKILL)
        await crowd.ended()
        await answered(engine, "wait for the restart")
        monkeypatch.setattr(module, "WORKER", "no_such_worker")
        assert (await answered(engine, "a suspect")).error is None
        assert engine.tokens.second.process_id is None


async def test_a_second_worker_is_ended_when_nobody_needs_it() -> None:
    async with opened() as engine:
        engine.tokens.second._linger_s = 0.2
        crowd = Crowd(engine, "a suspect")
        await crowd.started()
        os.kill(worker_of(engine), signal.SIGKILL)
        await crowd.ended()
        assert (await answered(engine, "a suspect")).error is None
        assert engine.tokens.second.process_id is not None
        promised = engine.models()[0].memory_mb
        await until(lambda: engine.tokens.second.process_id is None)
        assert engine.models()[0].memory_mb < promised


async def test_without_file_handles_a_model_recovers_later_and_says_so_meanwhile() -> None:
    async with opened(replace(LIMITS, recovery_wait_s=0.1, healthy_s=1000.0)) as engine:
        await answered(engine, "warm up")
        os.kill(worker_of(engine), signal.SIGKILL)
        with no_more_files():
            await until(lambda: engine.models()[0].status == "recovering")
            for _ in range(10):
                assert (await answered(engine, "meanwhile")).error is ModelRecovering
        await until(lambda: engine.models()[0].status == "loaded")
        assert (await answered(engine, "later")).error is None
        assert restarts_of(engine) == 1


async def test_a_request_that_hangs_is_caught_though_its_client_left_long_before() -> None:
    async with opened(WATCHFUL) as engine:
        await answered(engine, "warm up")
        for deaths in (1, 2):
            crowd = Crowd(engine, STONE)
            await crowd.started()
            await asyncio.sleep(0.05)
            await crowd.leave()
            await until(lambda least=deaths: restarts_of(engine) >= least, 20.0)
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
    async with opened(facts=HUGE) as engine:
        neighbour = Crowd(engine, "a neighbour")
        await neighbour.started()
        assert (await answered(engine, POISON)).error is EngineFailed
        await neighbour.ended()
        again = Crowd(engine, POISON)
        await again.started()
        outside = asyncio.create_task(answered(engine, "came later", 4000))
        assert [answer.error for answer in await again.ended()] == [EngineFailed]
        await until(lambda: engine.tokens.queue.inside > 0)
        assert (await answered(engine, "beside it")).error is None, "it runs beside others"
        assert not outside.done()
        outside.cancel()
        await asyncio.gather(outside, return_exceptions=True)


async def test_after_too_many_deaths_everybody_is_told_at_once_and_why() -> None:
    async with opened(replace(LIMITS, healthy_s=1000.0, backoff_s=(0.3,))) as engine:
        os.kill(worker_of(engine), signal.SIGSEGV)
        await until(lambda: engine.models()[0].status == "recovering")
        waiting = Crowd(engine, "waits for the restart")
        await waiting.started()
        os.kill(worker_of(engine), signal.SIGSEGV)
        [answer] = await waiting.ended()
        assert answer.error is EngineFailed
        await until(lambda: engine.models()[0].status == "failed")
        assert engine.models()[0].error == "The worker was killed by SIGSEGV 2 times in a row."
        began_s = time.monotonic()
        assert (await answered(engine, "too late")).error is EngineFailed
        assert time.monotonic() - began_s < 0.5
