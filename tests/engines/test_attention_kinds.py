"""What holds on one kind of attention holds on each: scores, determinism and KV that is saved."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attention_kinds import KINDS, WORDS, write_model

from ganglion.core.events import Finished, Pieces, Scored
from ganglion.core.request import Score, Stop, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import kept_open

Logprobs = list[float | None]
LENGTHS = (40, 64, 109, 300, 900)
"""Below, at and above a tile of attention's rows, and for each size of slot."""


@pytest.fixture(scope="module", params=list(KINDS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_model(file, request.param)
    yield file


@asynccontextmanager
async def opened(path: Path, **settings: object) -> AsyncIterator[LlamaEngine]:
    asked = {"context": 2048, "threads": 2} | settings
    subject = LlamaEngine(read_facts(path), EngineSettings("tiny", **asked))  # type: ignore[arg-type]
    async with kept_open(subject):
        yield subject


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    return (1, *(chance.randrange(3, len(WORDS)) for _ in range(count - 1)))


async def scores(engine: LlamaEngine, tokens: tuple[int, ...], *, salt: str = "") -> Logprobs:
    request = TokenRequest("score", tokens, 0, score=Score(((0, None),)), salt=salt)
    events = [event async for event in engine.tokens.run(request)]
    assert isinstance(events[-1], Finished), events[-1]
    return [token.logprob for event in events if isinstance(event, Scored) for token in event.tokens]


async def answer(
    engine: LlamaEngine, tokens: tuple[int, ...], count: int, *, salt: str = "", temperature: float = 0.0
) -> tuple[tuple[int, ...], int]:
    """What follows some tokens, and how many of them were cached."""
    request = TokenRequest(
        "answer",
        tokens,
        count,
        sampling=ResolvedSampling(temperature=temperature, seed=1),
        stop=Stop(ignore_eos=True),
        salt=salt,
        in_tokens=True,
    )
    events = [event async for event in engine.tokens.run(request)]
    end = events[-1]
    assert isinstance(end, Finished), end
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    return tuple(token.id for piece in pieces for token in piece.tokens), end.usage.cached_tokens


@asynccontextmanager
async def load(engine: LlamaEngine) -> AsyncIterator[None]:
    """Eight neighbours of uneven lengths, which come and go and leave their cells behind."""

    async def neighbour(seed: int) -> None:
        for turn in range(1000):
            await answer(engine, tokens_of(seed + 97 * turn, 21 + 37 * seed % 230), 5 + seed, salt=str(seed))

    tasks = [asyncio.create_task(neighbour(seed)) for seed in range(8)]
    await asyncio.sleep(0.3)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


async def test_scores_are_the_same_quiet_and_beside_a_load_to_the_last_bit(path: Path) -> None:
    async with opened(path) as engine:
        quiet = [await scores(engine, tokens_of(length, length)) for length in LENGTHS]
        async with load(engine):
            for _ in range(2):
                for length, expected in zip(LENGTHS, quiet, strict=True):
                    assert await scores(engine, tokens_of(length, length)) == expected, length
        assert [await scores(engine, tokens_of(length, length)) for length in LENGTHS] == quiet


async def test_a_deterministic_answer_is_the_same_alone_and_among_others(path: Path) -> None:
    async with opened(path, context=512, kv_tokens=4096, is_deterministic=True) as engine:
        prompts = [tokens_of(length, length) for length in (30, 64, 109, 200)]
        alone = [await answer(engine, prompt, 24, temperature=0.8) for prompt in prompts]
        async with load(engine):
            for _ in range(2):
                among = [await answer(engine, prompt, 24, temperature=0.8) for prompt in prompts]
                assert among == alone


async def test_saved_kv_goes_on_as_the_whole_prompt_would_or_is_said_not_to_be_there(path: Path) -> None:
    tokens = tokens_of(9, 200)
    async with opened(path) as engine:
        first, _ = await answer(engine, tokens, 8, salt="mine")
        held = (*tokens, *first)
        state = await engine.save_kv("tiny", "mine", held)
        further, _ = await answer(engine, (*held, 5), 8, salt="mine")
    async with opened(path) as engine:
        loaded = await engine.load_kv("tiny", "mine", held, state)
        again, cached = await answer(engine, (*held, 5), 8, salt="mine")
        assert cached == loaded
        assert (loaded > 0) == (state != b"")
        assert again == further
