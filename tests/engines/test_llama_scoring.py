"""Logprobs of prompt tokens: equal to what raw logits say, whatever was cached and whoever runs beside."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import pytest_asyncio

from ganglion.core.events import Finished, Scored, TokenEvent
from ganglion.core.request import Score, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.repack import load_repacked
from ganglion.engines.llama.plan import output_rows
from ganglion.engines.llama.worker.scoring import likeliest_of
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find
from ganglion.server.app import build_node
from ganglion.server.settings import ServerSettings
from support.embedded_model import kept_open

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
CLOSE = 1e-3
TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank. "


class Reference:
    """The model in this process: logits of every position, in float64."""

    def __init__(self) -> None:
        assert found is not None
        self.model = load_repacked(open_library(), str(found.path))
        self.context = self.model.new_context(
            cells=512, slots=1, is_unified=True, batch=512, threads=2, kv_type="f16", flash_attention=None
        )

    def tokens(self, text: str, count: int) -> tuple[int, ...]:
        return tuple(self.model.tokenize(text, add_special=True, parse_special=True)[:count])

    def logprobs(self, tokens: tuple[int, ...]) -> list[np.ndarray]:
        """The log-softmax after each token."""
        self.context.trim(0, 0)
        found = []
        for row in self.context.decode([(0, at, [token], True) for at, token in enumerate(tokens)]):
            assert row is not None
            logits = self.context.logits(row).astype(np.float64)
            highest = logits.max()
            found.append(logits - highest - np.log(np.exp(logits - highest).sum()))
        return found


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@asynccontextmanager
async def opened(**settings: int) -> AsyncIterator[LlamaEngine]:
    assert found is not None
    subject = LlamaEngine(read_facts(found.path), EngineSettings("smollm2", **settings))
    async with kept_open(subject):
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaEngine]:
    async with opened(context=2048) as subject:
        yield subject


def asked(
    tokens: tuple[int, ...], *ranges: tuple[int, int | None], top: int = 0, **more: int
) -> TokenRequest:
    return TokenRequest(
        "score",
        tokens,
        more.get("max_tokens", 0),
        sampling=ResolvedSampling(temperature=0.0),
        score=Score(ranges, top),
    )


async def run(engine: LlamaEngine, request: TokenRequest) -> tuple[list[Scored], Finished]:
    events: list[TokenEvent] = [event async for event in engine.tokens.run(request)]
    assert isinstance(events[-1], Finished), events[-1]
    return [event for event in events if isinstance(event, Scored)], events[-1]


def by_position(scored: list[Scored]) -> dict[int, float | None]:
    told = [(token.position, token.logprob) for event in scored for token in event.tokens]
    assert [position for position, _ in told] == sorted({position for position, _ in told})
    return dict(told)


async def test_scores_equal_a_log_softmax_over_raw_logits(engine: LlamaEngine, reference: Reference) -> None:
    tokens = reference.tokens(TEXT * 12, 200)
    expected = reference.logprobs(tokens)
    scored, finished = await run(engine, asked(tokens, (0, None), top=5))
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 0)
    told = [token for event in scored for token in event.tokens]
    assert [token.id for token in told] == list(tokens)
    assert told[0].logprob is None
    for token in told[1:]:
        row = expected[token.position - 1]
        assert token.logprob == pytest.approx(row[token.id], abs=CLOSE)
        assert token.piece == reference.model.piece(token.id)
        assert [each.logprob for each in token.top] == pytest.approx(np.sort(row)[::-1][:5], abs=CLOSE)
        # Near ties may stand the other way round in the other computation.
        likelier = [int((row > row[token.id] + error).sum()) for error in (2 * CLOSE, -2 * CLOSE)]
        assert token.rank is not None
        assert likelier[0] < token.rank <= likelier[1] + 1
    assert max(token.rank or 0 for token in told) > 100, "also far outside the likeliest"


async def test_ranges_say_what_completions_say_that_echo_their_prompt(
    engine: LlamaEngine, reference: Reference
) -> None:
    text = "Echoed. " + TEXT * 9
    tokens = reference.tokens(text, 10_000)
    events = [
        event
        async for event in engine.continue_tokens(
            "smollm2", asked(tokens, (0, 7), (20, 25), (90, None), top=3)
        )
    ]
    ranged = [token for event in events if isinstance(event, Scored) for token in event.tokens]
    assert isinstance(events[-1], Finished)
    app = build_node(engine, ServerSettings())
    body = {"model": "smollm2", "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 3}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        echoed = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
        scores = await http.post(
            "/v1/score", json={"model": "smollm2", "prompt": text, "score_ranges": [[0, None]], "top_k": 3}
        )
    [whole] = scores.json()["scores"]
    assert echoed["tokens"] == [token["token"] for token in whole["tokens"]]
    assert [token.position for token in ranged] == [*range(7), *range(20, 25), *range(90, len(tokens))]
    for token in ranged:
        shown, single = echoed["token_logprobs"][token.position], whole["tokens"][token.position]
        assert token.piece.decode() == echoed["tokens"][token.position]
        if token.position == 0:
            assert shown is single["logprob"] is token.logprob is None
            continue
        assert token.logprob == pytest.approx(shown, abs=CLOSE) == single["logprob"]
        likeliest = sorted((each.logprob for each in token.top), reverse=True)
        told = sorted(echoed["top_logprobs"][token.position].values(), reverse=True)
        assert likeliest == pytest.approx(told[:3], abs=CLOSE)
        assert likeliest == pytest.approx([each["logprob"] for each in single["top"]], abs=CLOSE)


async def test_a_cached_prefix_changes_no_score_and_is_reused_up_to_the_first_range(
    engine: LlamaEngine, reference: Reference
) -> None:
    tokens = reference.tokens("A different story. " + TEXT * 9, 150)
    whole, first = await run(engine, asked(tokens, (0, None)))
    again, _ = await run(engine, asked(tokens, (0, None)))
    tail, later = await run(engine, asked(tokens, (140, None)))
    assert by_position(again) == pytest.approx(by_position(whole), abs=CLOSE, nan_ok=True)
    kept = {place: value for place, value in by_position(whole).items() if place >= 140}
    assert by_position(tail) == pytest.approx(kept, abs=CLOSE)
    assert first.usage.cached_tokens == 0
    assert later.usage.cached_tokens == 64, "where the batches of the whole prompt end too"


async def test_ranges_are_honoured_exactly(engine: LlamaEngine, reference: Reference) -> None:
    tokens = reference.tokens("Ranges. " + TEXT * 12, 150)
    cases: list[tuple[tuple[tuple[int, int | None], ...], set[int]]] = [
        (((0, 1),), {0}),
        (((5, 9), (7, 12)), set(range(5, 12))),
        (((149, None), (3, 4)), {3, 149}),
        (((140, 2**32 - 1),), set(range(140, 150))),
        (((8, 8), (150, 160)), set()),
    ]
    for ranges, positions in cases:
        scored, _ = await run(engine, asked(tokens, *ranges))
        assert set(by_position(scored)) == positions


async def test_a_prompt_is_scored_among_eight_that_generate(
    engine: LlamaEngine, reference: Reference
) -> None:
    tokens = reference.tokens("Neighbours. " + TEXT * 20, 300)
    expected = reference.logprobs(tokens)
    neighbours = [
        asyncio.create_task(
            run(engine, asked(reference.tokens(f"Number {number}. " + TEXT, 20), max_tokens=40))
        )
        for number in range(8)
    ]
    await asyncio.sleep(0.05)
    scored, _ = await run(engine, asked(tokens, (0, None)))
    for position, value in by_position(scored).items():
        if position:
            assert value == pytest.approx(expected[position - 1][tokens[position]], abs=CLOSE)
    for _, finished in await asyncio.gather(*neighbours):
        assert finished.usage.completion_tokens > 0


async def test_scores_and_an_answer_come_from_one_request(engine: LlamaEngine, reference: Reference) -> None:
    tokens = reference.tokens(TEXT, 18)
    _, plain = await run(engine, asked(tokens, max_tokens=4))
    scored, finished = await run(engine, asked(tokens, (10, None), max_tokens=4))
    assert finished.usage.completion_tokens == plain.usage.completion_tokens
    assert set(by_position(scored)) == set(range(10, len(tokens)))


async def test_scoring_a_long_prompt_whole_takes_little_memory(reference: Reference) -> None:
    async with opened(context=1024, kv_tokens=1024) as subject:
        worker = psutil.Process(subject.tokens.supervisor.process_id)
        await run(subject, TokenRequest("plain", reference.tokens("Warm. " + TEXT * 20, 256), 0))
        before = worker.memory_info().rss
        tokens = reference.tokens("Measured. " + TEXT * 100, 1000)
        cells = read_facts(found.path).kv_bytes(1000, 2.0) if found is not None else 0
        scored, _ = await run(subject, asked(tokens, (0, None)))
        assert len(by_position(scored)) == 1000
        assert max(len(event.tokens) for event in scored) <= output_rows(49152)
        assert worker.memory_info().rss - before - cells < 64 * 2**20


async def test_a_deterministic_engine_scores_the_same_each_time(reference: Reference) -> None:
    async with opened(context=512, kv_tokens=1024, is_deterministic=True) as subject:
        tokens = reference.tokens(TEXT * 20, 200)
        first, _ = await run(subject, asked(tokens, (0, None)))
        other = asked(reference.tokens("Other. " + TEXT, 20), max_tokens=20)
        beside = asyncio.create_task(run(subject, other))
        second, _ = await run(subject, asked(tokens, (0, None)))
        await beside
        assert by_position(first) == by_position(second)


async def test_the_likeliest_of_a_row_are_those_of_a_full_sort() -> None:
    chance = np.random.default_rng(7)
    for size in (10, 64, 65, 1000, 49152):
        row = chance.normal(size=size).astype(np.float32).round(2)
        for count in (0, 1, 5, 20):
            values = [value for _, value in likeliest_of(row, count, 0.0)]
            assert values == pytest.approx(np.sort(row)[::-1][:count].tolist())
            assert all(row[token] == np.float32(value) for token, value in likeliest_of(row, count, 0.0))
