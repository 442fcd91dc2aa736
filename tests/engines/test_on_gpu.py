"""The llama engine on a real GPU: `GANGLION_LIBLLAMA=... pytest -m gpu`; skipped where there is none."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from ganglion.core.errors import EngineUnavailable, InsufficientVideoMemory
from ganglion.core.events import Failed, Finished
from ganglion.core.request import Stop, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.probe import LibraryDevice, accelerators_among, probe
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.waiting import until

found = find(SMOLLM2, Path("nowhere"))


def devices() -> tuple[LibraryDevice, ...]:
    """The accelerators of the library that the environment names; the bundled one is not asked."""
    if not os.environ.get("GANGLION_LIBLLAMA"):
        return ()
    try:
        return accelerators_among(probe(None).devices)
    except EngineUnavailable:
        return ()


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.model,
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
    pytest.mark.skipif(not devices(), reason="no GPU: GANGLION_LIBLLAMA names no library that knows one"),
]


def free_bytes() -> int:
    return sum(device.free_bytes for device in devices())


@asynccontextmanager
async def opened(**settings: object) -> AsyncIterator[LlamaEngine]:
    assert found is not None
    asked = structs.replace(EngineSettings("smollm2"), **settings)
    subject = LlamaEngine(read_facts(found.path), asked, free_video_memory=free_bytes())
    await subject.open()
    try:
        yield subject
    finally:
        await subject.close()


async def answer(subject: LlamaEngine, number: int, sampling: ResolvedSampling) -> tuple[int, ...]:
    asked = TokenRequest(
        f"tenant{number}",
        tuple(range(1000 * number, 1000 * number + 40)),
        30,
        sampling=sampling,
        stop=Stop(ignore_eos=True),
        wants_token_ids=True,
    )
    async for event in subject.tokens.run(asked):
        assert not isinstance(event, Failed), event.error
        if isinstance(event, Finished):
            return event.token_ids or ()
    return ()


GREEDY = ResolvedSampling(temperature=0.0)


async def test_greedy_is_the_same_in_the_graph_and_on_the_host() -> None:
    answers = []
    for graph_sampling in (False, True):
        async with opened(graph_sampling=graph_sampling, is_deterministic=True, context=512) as subject:
            answers.append([await answer(subject, number, GREEDY) for number in range(1, 6)])
    assert answers[0] == answers[1]


async def test_a_seed_gives_the_same_answer_twice() -> None:
    drawn = ResolvedSampling(temperature=0.9, seed=7)
    async with opened(is_deterministic=True, context=512) as subject:
        assert subject.plan.samples_in_graph
        assert await answer(subject, 1, drawn) == await answer(subject, 1, drawn)


async def test_all_layers_are_there_by_default_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ganglion.engines")
    async with opened() as subject:
        assert subject.plan.gpu_layers == subject.plan.layer_count
        assert subject.models()[0].devices == ("gpu",)
    count = subject.plan.layer_count
    assert f"{count} of {count} layers on {devices()[0].name}" in caplog.text


async def test_a_crowd_is_answered_and_unloading_gives_the_memory_back() -> None:
    before = free_bytes()
    async with opened(parallel=64) as subject:
        crowd = await asyncio.gather(*(answer(subject, number, GREEDY) for number in range(1, 48)))
        assert {len(each) for each in crowd} == {30}
        assert free_bytes() < before - 50 * 2**20
    await until(lambda: free_bytes() >= before - 64 * 2**20, pause_s=0.2)


async def test_layers_that_cannot_fit_are_refused_with_what_is_free_and_needed() -> None:
    assert found is not None
    asked = EngineSettings("smollm2", gpu_layers=99)
    with pytest.raises(InsufficientVideoMemory) as raised:
        LlamaEngine(read_facts(found.path), asked, free_video_memory=64 * 2**20)
    assert raised.value.extras["free_mb"] == 64
    assert int(str(raised.value.extras["required_mb"])) > 64
    async with opened() as subject:
        assert len(await answer(subject, 1, GREEDY)) == 30, "nothing was left behind"


async def test_a_pool_beyond_the_device_is_refused_by_its_name_after_the_load() -> None:
    assert found is not None
    facts = read_facts(found.path)
    tokens = int(free_bytes() * 1.2 / facts.kv_bytes(1, 2.0))
    asked = structs.replace(EngineSettings("smollm2"), gpu_layers=99, kv_tokens=tokens, parallel=1)
    subject = LlamaEngine(facts, asked, free_memory=2**50, free_video_memory=2**50)
    try:
        with pytest.raises(InsufficientVideoMemory):
            await subject.open()
    finally:
        await subject.close()
