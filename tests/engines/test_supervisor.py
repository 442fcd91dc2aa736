"""Keeping a worker alive, with workers that die on purpose."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
import uvloop

from ganglion.core.errors import EngineFailed, LoadFailed, ModelRecovering, ShuttingDown
from ganglion.engines import supervisor
from ganglion.engines.supervisor import Supervisor


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.3)


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "brief_worker" in child.cmdline()]


@asynccontextmanager
async def supervised(plan: str) -> AsyncIterator[Supervisor]:
    subject = Supervisor("m", "brief_worker", plan.encode())
    try:
        await subject.open()
        yield subject
    finally:
        await subject.close()
        assert not workers(), "none outlives its supervisor"


async def until(subject: Supervisor, status: str, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while subject.status != status:  # noqa: ASYNC110 - it is what an operator sees
            await asyncio.sleep(0.005)


async def test_a_worker_that_is_killed_is_replaced_and_the_next_request_waits_for_it() -> None:
    async with supervised("live") as subject:
        first = subject.process_id
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(subject, "recovering")
        assert (await subject.connection()).ready.done()
        assert (subject.status, subject.restarts) == ("loaded", 1)
        assert subject.process_id != first


async def test_a_worker_that_keeps_dying_is_given_up_and_says_so() -> None:
    async with supervised("live") as subject:
        subject._plan = b"die"
        assert subject.process_id is not None
        os.kill(subject.process_id, signal.SIGKILL)
        await until(subject, "failed")
        assert subject.restarts == len(supervisor.BACKOFF_S)
        assert subject.error is not None
        with pytest.raises(EngineFailed, match="is down"):
            await subject.connection()


def test_workers_that_die_as_soon_as_they_are_ready_leave_no_request_waiting() -> None:
    async def scenario() -> None:
        async with supervised("live") as subject:
            subject._plan = b"blink"
            assert subject.process_id is not None
            os.kill(subject.process_id, signal.SIGKILL)
            await until(subject, "recovering")
            async with asyncio.timeout(10.0):
                while subject.status != "failed":
                    with suppress(EngineFailed):
                        connection = await subject.connection()
                        await connection.tokenize("a", add_special=False, parse_special=False)
            assert subject.current is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the node's own event loop
        runner.run(scenario())


async def test_those_who_wait_too_long_for_a_restart_are_told_to_come_back(monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (30.0,))
    monkeypatch.setattr(supervisor, "RECOVERY_WAIT_S", 0.05)
    async with supervised("live") as subject:
        assert subject.process_id is not None
        os.kill(subject.process_id, signal.SIGKILL)
        await until(subject, "recovering")
        with pytest.raises(ModelRecovering):
            await subject.connection()


async def test_a_long_life_starts_the_count_of_deaths_anew(monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "HEALTHY_S", 0.0)
    async with supervised("live") as subject:
        for _ in range(len(supervisor.BACKOFF_S) + 2):
            await subject.connection()
            assert subject.process_id is not None
            os.kill(subject.process_id, signal.SIGKILL)
            await until(subject, "recovering")
        await subject.connection()
        assert subject.status == "loaded"


async def test_a_model_that_cannot_be_loaded_is_the_workers_own_typed_error() -> None:
    subject = Supervisor("m", "brief_worker", b"refuse")
    with pytest.raises(LoadFailed, match="not a model") as caught:
        await subject.open()
    assert caught.value.hint == "fetch it again"
    assert subject.status == "failed"
    await subject.close()


async def test_a_worker_that_dies_while_it_loads_is_an_error_and_leaves_no_process() -> None:
    subject = Supervisor("m", "brief_worker", b"die")
    with pytest.raises(EngineFailed):
        await subject.open()
    assert not workers()
    await subject.close()


async def test_a_worker_that_does_not_listen_is_killed_when_the_supervisor_closes() -> None:
    async with supervised("stubborn") as subject:
        process = psutil.Process(subject.process_id)
    assert not process.is_running()
    with pytest.raises(ShuttingDown):
        await subject.connection()
