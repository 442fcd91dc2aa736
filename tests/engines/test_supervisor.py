"""Keeping a worker alive, with workers that die on purpose."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import uvloop
from brief_worker import JAM

from ganglion.core.errors import EngineFailed, LoadFailed, ModelRecovering, ShuttingDown
from ganglion.engines.supervision.ipc import Tokenize, Tokenized
from ganglion.engines.supervision.supervisor import Supervisor
from ganglion.engines.supervision.watchdog import WorkerLimits
from support.handles import no_more_files
from support.waiting import until

LIMITS = WorkerLimits(stop_s=0.3, backoff_s=(0.01, 0.01))
WATCHFUL = replace(LIMITS, ping_s=0.05, silence_s=0.5, hang_s=0.2)
"""With the patience for a first step, a hang takes 0.8 s."""


@pytest.fixture(autouse=True)
def beside_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def workers() -> list[psutil.Process]:
    """The living and the dead that nobody buried."""
    return [child for child in psutil.Process().children() if is_worker(child)]


def is_worker(child: psutil.Process) -> bool:
    return child.status() == psutil.STATUS_ZOMBIE or "brief_worker" in child.cmdline()


@asynccontextmanager
async def supervised(plan: str, limits: WorkerLimits = LIMITS) -> AsyncIterator[Supervisor]:
    subject = Supervisor("m", "brief_worker", plan.encode(), limits)
    try:
        await subject.open()
        yield subject
    finally:
        await subject.close()
        assert not workers(), "none outlives its supervisor"


def kill(subject: Supervisor, number: signal.Signals = signal.SIGKILL) -> int:
    assert subject.process_id is not None
    os.kill(subject.process_id, number)
    return subject.process_id


async def until_status(subject: Supervisor, status: str, timeout_s: float = 10.0) -> None:
    await until(lambda: subject.status == status, timeout_s)


async def test_a_worker_that_is_killed_is_replaced_and_the_next_request_waits_for_it() -> None:
    async with supervised("live") as subject:
        first = kill(subject)
        await until_status(subject, "recovering")
        assert (await subject.connection()).ready.done()
        assert (subject.status, subject.restarts, subject.error) == ("loaded", 1, None)
        assert subject.process_id != first


async def test_what_happened_is_told_while_the_worker_is_restarted() -> None:
    async with supervised("live", replace(LIMITS, backoff_s=(30.0,))) as subject:
        kill(subject, signal.SIGSEGV)
        await until(lambda: subject.error is not None, 5.0)
        assert subject.status == "recovering"
        assert subject.error.message == "The worker was killed by SIGSEGV."


async def test_a_worker_that_keeps_dying_the_same_way_is_given_up_and_says_so() -> None:
    async with supervised("live") as subject:
        for end in ("recovering", "recovering", "failed"):
            await subject.connection()
            kill(subject, signal.SIGSEGV)
            await until_status(subject, end)
        assert subject.restarts == 2
        assert subject.error is not None
        assert subject.error.message == "The worker was killed by SIGSEGV 3 times in a row."
        with pytest.raises(EngineFailed, match="is down"):
            await subject.connection()


async def test_a_worker_that_cannot_load_again_is_given_up_with_the_last_reason() -> None:
    async with supervised("live") as subject:
        subject._plan = b"die"
        kill(subject)
        await until_status(subject, "failed")
        assert subject.error is not None
        assert "3 times in a row" in subject.error.message
        assert "ended with exit code 3 while it loaded the model" in subject.error.message


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_workers_that_die_as_soon_as_they_are_ready_leave_no_request_waiting(new_loop) -> None:
    async def scenario() -> None:
        async with supervised("live") as subject:
            subject._plan = b"blink"
            kill(subject)
            await until_status(subject, "recovering")
            async with asyncio.timeout(10.0):
                while subject.status != "failed":
                    with suppress(EngineFailed):
                        connection = await subject.connection()
                        await connection.ask(Tokenize(connection.new_id(), "a", False, False), Tokenized)
            assert subject.current is None

    with asyncio.Runner(loop_factory=new_loop) as runner:  # uvloop's is the node's own
        runner.run(scenario())


async def test_those_who_wait_too_long_for_a_restart_are_told_to_come_back() -> None:
    async with supervised("live", replace(LIMITS, backoff_s=(30.0,), recovery_wait_s=0.05)) as subject:
        kill(subject)
        await until_status(subject, "recovering")
        with pytest.raises(ModelRecovering):
            await subject.connection()


async def test_a_long_life_starts_the_count_of_deaths_anew() -> None:
    async with supervised("live", replace(LIMITS, healthy_s=0.0)) as subject:
        for _ in range(len(LIMITS.backoff_s) + 2):
            await subject.connection()
            kill(subject)
            await until_status(subject, "recovering")
        await subject.connection()
        assert subject.status == "loaded"


async def test_a_stopped_worker_is_noticed_though_it_has_nothing_to_do() -> None:
    async with supervised("live", WATCHFUL) as subject:
        first = kill(subject, signal.SIGSTOP)
        await until_status(subject, "recovering", 3.0)
        await subject.connection()
        assert subject.restarts == 1
        assert not psutil.pid_exists(first)


async def test_a_worker_that_answers_pings_and_tokenizes_nothing_is_ended_and_says_why() -> None:
    async with supervised("live", WATCHFUL) as subject:
        connection = await subject.connection()
        with pytest.raises(EngineFailed, match=r"tokenized nothing for 0\.8 s"):
            await connection.ask(Tokenize(connection.new_id(), JAM, False, False), Tokenized)
        await subject.connection()
        assert subject.restarts == 1


async def test_an_idle_worker_is_left_in_peace() -> None:
    async with supervised("live", WATCHFUL) as subject:
        await asyncio.sleep(1.0)
        assert (subject.status, subject.restarts) == ("loaded", 0)


async def test_a_server_that_was_blocked_does_not_blame_its_worker() -> None:
    async with supervised("live", WATCHFUL) as subject:
        for _ in range(2):
            await asyncio.sleep(0.1)
            time.sleep(0.7)  # noqa: ASYNC251 - that is the point
        await asyncio.sleep(0.1)
        assert (subject.status, subject.restarts) == ("loaded", 0)


async def test_a_model_that_cannot_be_loaded_is_the_workers_own_typed_error() -> None:
    subject = Supervisor("m", "brief_worker", b"refuse", LIMITS)
    with pytest.raises(LoadFailed, match="not a model") as caught:
        await subject.open()
    assert caught.value.hint == "fetch it again"
    assert subject.status == "failed"
    await subject.close()


async def test_a_worker_that_dies_while_it_loads_is_an_error_and_leaves_no_process() -> None:
    subject = Supervisor("m", "brief_worker", b"die", LIMITS)
    with pytest.raises(EngineFailed, match="exit code 3 while it loaded"):
        await subject.open()
    assert not workers()
    await subject.close()


async def test_a_worker_that_does_not_listen_is_killed_when_the_supervisor_closes() -> None:
    async with supervised("stubborn") as subject:
        process = psutil.Process(subject.process_id)
    assert not process.is_running()
    with pytest.raises(ShuttingDown):
        await subject.connection()


async def test_closing_while_a_dead_worker_is_waited_for_leaves_no_process() -> None:
    async with supervised("stubborn") as subject:
        assert subject.current is not None
        process = psutil.Process(subject.process_id)
        subject.current.abort()
        await until_status(subject, "recovering")
    assert not process.is_running()


async def test_a_supervisor_that_was_closed_can_be_opened_again() -> None:
    async with supervised("live") as subject:
        await subject.close()
        await subject.open()
        kill(subject)
        await until_status(subject, "recovering")
        assert (await subject.connection()).ready.done()


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_restart_without_file_handles_is_tried_until_there_are_some(new_loop) -> None:
    async def scenario() -> None:
        limits = replace(LIMITS, recovery_wait_s=0.05, healthy_s=1000.0)
        async with supervised("live", limits) as subject:
            kill(subject)
            with no_more_files():
                await until_status(subject, "recovering")
                # More often than a worker may die.
                for _ in range(3 * len(LIMITS.backoff_s)):
                    with pytest.raises(ModelRecovering):
                        await subject.connection()
                assert "Too many open files" in (subject.error.message if subject.error else "")
                assert subject.status == "recovering"
            await until_status(subject, "loaded")
            assert (await subject.connection()).ready.done()
            assert subject.restarts == 1

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


async def test_a_first_start_without_file_handles_says_so_and_leaves_nothing() -> None:
    subject = Supervisor("m", "brief_worker", b"live", LIMITS)
    before = psutil.Process().num_fds()
    with no_more_files(), pytest.raises(EngineFailed, match="Too many open files") as caught:
        await subject.open()
    assert "ulimit" in (caught.value.hint or "")
    assert psutil.Process().num_fds() == before
    await subject.open()
    await subject.close()
