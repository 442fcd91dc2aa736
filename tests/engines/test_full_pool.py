"""A pool too small for all who run: they take turns in it, and the library is never asked for too much."""

import asyncio
from pathlib import Path

import pytest

from ganglion.core.events import Failed, Finished
from ganglion.core.request import Stop, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
CELLS, CROWD, PROMPT, TOKENS = 256, 6, 20, 60


async def test_a_crowd_that_fills_every_cell_together_is_answered_whole() -> None:
    assert found is not None
    subject = LlamaEngine(read_facts(found.path), EngineSettings("smollm2", context=CELLS, kv_tokens=CELLS))

    async def length(number: int) -> int | None:
        request = TokenRequest(
            str(number),
            tuple(range(1000 * number, 1000 * number + PROMPT)),
            TOKENS,
            sampling=ResolvedSampling(temperature=0.0),
            stop=Stop(ignore_eos=True),
        )
        async for event in subject.tokens.run(request):
            assert not isinstance(event, Failed), event.error
            if isinstance(event, Finished):
                return event.usage.completion_tokens
        return None

    await subject.open()
    try:
        lengths = await asyncio.gather(*(length(number) for number in range(1, CROWD + 1)))
        restarts = subject.models()[0].restarts
    finally:
        await subject.close()
    assert CROWD * (PROMPT + TOKENS) > CELLS
    assert lengths == [TOKENS] * CROWD
    assert restarts == 0
