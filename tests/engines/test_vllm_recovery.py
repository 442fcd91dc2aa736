"""vLLM's processes killed, stopped and short of memory: all are told, it recovers, and nothing is left."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from ganglion.core.errors import (
    EngineFailed,
    EngineUnavailable,
    GanglionError,
    InsufficientMemory,
    LoadFailed,
    ModelNotFound,
)
from ganglion.core.events import Delta, Failed, Finished
from ganglion.core.request import Request, Stop, TextPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.settings import EngineSettings
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.safetensors import read_facts
from support.vllm_node import (
    LIMITS,
    embedded_checkpoint,
    living,
    processes_of,
    vllm_engine,
    vllm_settings,
)
from support.waiting import until

pytestmark = [pytest.mark.model, pytest.mark.vllm, pytest.mark.timeout(900)]
TOLD_S = 2.0
"""How long after a death everybody must know."""
HANG_S = 4.0
START_S = 300.0


def settings(**limits: float) -> EngineSettings:
    return structs.replace(vllm_settings(), limits=replace(LIMITS, **limits))


class Story:
    """A stream that goes on until it is ended."""

    def __init__(self, engine: VllmEngine, text: str) -> None:
        self.started = asyncio.Event()
        self.ended_s = 0.0
        self.last: Finished | Failed | None = None
        self.task = asyncio.create_task(self._read(engine, text))

    async def _read(self, engine: VllmEngine, text: str) -> None:
        request = Request(
            "r",
            "smollm2",
            TextPrompt(text),
            sampling=Sampling(temperature=0.0),
            max_tokens=1800,
            stop=Stop(ignore_eos=True),
        )
        async for event in engine.generate(request):
            if isinstance(event, Delta):
                self.started.set()
            if isinstance(event, Finished | Failed):
                self.last, self.ended_s = event, time.monotonic()


async def stories(engine: VllmEngine, name: str) -> list[Story]:
    """Three streams that run."""
    told = [Story(engine, f"{name} {number}") for number in range(3)]
    await asyncio.gather(*(story.started.wait() for story in told))
    return told


async def is_back(engine: VllmEngine) -> None:
    await until(lambda: engine.models()[0].status == "loaded", START_S)
    request = Request("r", "smollm2", TextPrompt("again"), max_tokens=4)
    last = [event async for event in engine.generate(request)][-1]
    assert isinstance(last, Finished), last


def worker(processes: list[psutil.Process]) -> psutil.Process:
    return processes[0]


def engine_core(processes: list[psutil.Process]) -> psutil.Process:
    return next(each for each in processes if "EngineCor" in each.name())


def rank(processes: list[psutil.Process]) -> psutil.Process:
    """The process that computes."""
    return next(each for each in processes if each.name().startswith("VLLM::Worker"))


Pick = Callable[[list[psutil.Process]], psutil.Process]


async def test_the_death_of_each_process_is_told_at_once_and_nothing_of_it_is_left() -> None:
    async with vllm_engine(settings()) as engine:
        picks: list[Pick] = [worker, engine_core, rank]
        for turn, pick in enumerate(picks):
            told = await stories(engine, f"killed {turn}")
            before = processes_of(engine)
            os.kill(pick(before).pid, signal.SIGKILL)
            killed_s = time.monotonic()
            await asyncio.gather(*(story.task for story in told))
            for story in told:
                assert isinstance(story.last, Failed)
                assert type(story.last.error) is EngineFailed
                assert story.ended_s - killed_s < TOLD_S
            await is_back(engine)
            assert not living(before)
            assert engine.models()[0].restarts == turn + 1
        assert (engine.tokens.queue.inside, engine.tokens.queue.queued) == (0, 0)


@pytest.mark.parametrize("pick", [worker, rank])
async def test_a_process_that_hangs_is_noticed_and_all_of_them_are_started_anew(pick: Pick) -> None:
    async with vllm_engine(settings(hang_s=HANG_S, silence_s=HANG_S, ping_s=0.2)) as engine:
        told = await stories(engine, "hangs")
        before = processes_of(engine)
        os.kill(pick(before).pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        await asyncio.gather(*(story.task for story in told))
        for story in told:
            assert isinstance(story.last, Failed)
            assert type(story.last.error) is EngineFailed
            assert story.ended_s - stopped_s < HANG_S + TOLD_S
        await is_back(engine)
        assert not living(before)


# What cannot be loaded


@asynccontextmanager
async def refused(folder: Path, chosen: EngineSettings) -> AsyncIterator[list[GanglionError]]:
    """The error of opening, in a list; no process and no folder is left."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    engine = VllmEngine(read_facts(folder), chosen)
    errors: list[GanglionError] = []
    with pytest.raises(GanglionError) as caught:
        await engine.open()
    errors.append(caught.value)
    yield errors
    await engine.close()
    await until(lambda: not _started_since(before), 5.0)
    assert not is_there(engine.plan.folder)


def is_there(path: str) -> bool:
    return Path(path).exists()


def _started_since(before: set[int]) -> list[psutil.Process]:
    return [each for each in living(psutil.Process().children(recursive=True)) if each.pid not in before]


def changed(folder: Path, **config: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


async def test_an_architecture_that_vllm_does_not_know_is_named() -> None:
    with embedded_checkpoint() as folder:
        changed(folder, architectures=["OddForCausalLM"], model_type="odd")
        async with refused(folder, settings()) as [error]:
            assert type(error) is LoadFailed
            assert "odd" in error.message.lower()
            assert error.hint


async def test_code_that_comes_with_a_checkpoint_is_not_run() -> None:
    with embedded_checkpoint() as folder:
        ran = folder / "ran"
        (folder / "configuration_odd.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
        changed(folder, model_type="odd", auto_map={"AutoConfig": "configuration_odd.OddConfig"})
        async with refused(folder, settings()) as [error]:
            assert type(error) is LoadFailed
            assert "Python code" in error.message
            assert error.hint is not None
            assert "trust_remote_code" in error.hint
        assert not ran.exists()


async def test_an_argument_that_vllm_does_not_have_is_shown() -> None:
    chosen = settings()
    with embedded_checkpoint() as folder:
        chosen = structs.replace(chosen, vllm=structs.replace(chosen.vllm, extra='{"no_such_thing": 1}'))
        async with refused(folder, chosen) as [error]:
            assert type(error) is LoadFailed
            assert "no_such_thing" in error.message


async def test_memory_that_runs_out_while_it_loads_is_told_with_figures() -> None:
    with embedded_checkpoint() as folder:
        chosen = settings()
        chosen = structs.replace(chosen, vllm=structs.replace(chosen.vllm, kv_cache_gb=4096))
        engine = VllmEngine(read_facts(folder), chosen, free_memory=2**60)  # what the plan believes
        with pytest.raises(InsufficientMemory) as caught:
            await engine.open()
        assert 0 < caught.value.free_mb < caught.value.required_mb
        assert caught.value.hint
        await engine.close()


async def test_a_python_without_vllm_and_one_that_is_not_there_say_how_to_install_it() -> None:
    with embedded_checkpoint() as folder:
        for python in ("/no/such/python", shutil.which("python3") or "/usr/bin/python3"):
            chosen = vllm_settings()
            chosen = structs.replace(chosen, vllm=structs.replace(chosen.vllm, python=python))
            async with refused(folder, chosen) as [error]:
                assert type(error) is EngineUnavailable
                assert error.hint is not None
                assert "ganglion engines install vllm" in error.hint


async def test_a_folder_that_is_no_checkpoint_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises((LoadFailed, ModelNotFound)):
        read_facts(tmp_path)
