"""A model divided over two ranks, here of one processor each: it answers alike and dies as a whole."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from ganglion.core.events import Failed, Finished, Scored
from ganglion.core.request import Request, Score, Stop, TextPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.safetensors import read_facts
from support.checkpoint_files import write_small_checkpoint
from support.embedded_model import embedded_model, kept_open
from support.vllm_node import living, processes_of, vllm_settings
from support.waiting import until

pytestmark = [pytest.mark.model, pytest.mark.vllm, pytest.mark.timeout(600)]
TEXT = "Once upon a time there was a little girl who lived in a small house near the sea."


@asynccontextmanager
async def opened(folder: Path, ranks: int) -> AsyncIterator[VllmEngine]:
    settings = vllm_settings("small")
    vllm = structs.replace(settings.vllm, tensor_parallel=ranks)
    engine = VllmEngine(read_facts(folder), structs.replace(settings, threads=1, vllm=vllm))
    async with kept_open(engine):
        processes = processes_of(engine)
        assert sum(each.name().startswith("VLLM::Worker") for each in processes) == ranks
        yield engine
        processes += processes_of(engine)
    await until(lambda: not living(processes), 5.0)


async def scores(engine: VllmEngine) -> list[float]:
    request = Request("r", "small", TextPrompt(TEXT), max_tokens=0, score=Score(((1, None),)))
    events = [event async for event in engine.generate(request)]
    assert isinstance(events[-1], Finished), events[-1]
    found = [token.logprob for event in events if isinstance(event, Scored) for token in event.tokens]
    return [logprob for logprob in found if logprob is not None]


async def test_two_ranks_compute_what_one_does_and_die_together(tmp_path: Path) -> None:
    folder = write_small_checkpoint(embedded_model().path, tmp_path / "small")
    async with opened(folder, 1) as one:
        alone = await scores(one)
    async with opened(folder, 2) as two:
        together = await scores(two)
        assert len(alone) == len(together) > 10
        # Sums in bfloat16 over two halves round differently.
        assert alone == pytest.approx(together, abs=0.1)

        endless = Request(
            "r",
            "small",
            TextPrompt(TEXT),
            sampling=Sampling(temperature=0.0),
            max_tokens=1500,
            stop=Stop(ignore_eos=True),
        )
        before = processes_of(two)
        ended = []
        async for event in two.generate(endless):
            if not ended:
                rank = [each for each in before if each.name().startswith("VLLM::Worker")][-1]
                os.kill(rank.pid, signal.SIGKILL)
            ended.append(event)
        assert isinstance(ended[-1], Failed)
        await until(lambda: not living(before), 5.0)
