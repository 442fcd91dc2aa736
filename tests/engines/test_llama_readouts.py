"""Readouts: the same values whatever was cached and whoever runs beside, and each token told once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from readout_runs import CLOSE, Told, asked, far_apart, pack, run, written

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import LoadFailed, ReadoutUnavailable
from ganglion.core.events import Delta, Failed, Finished, Pieces, Token, TokenEvent
from ganglion.core.request import Ranges, Request, Score, Stop, TextPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.concepts.pack import ConceptPack
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.embedded_model import kept_open

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
LAYERS = [7, 14, 21, 28]
TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank. "


@asynccontextmanager
async def opened(concepts: tuple[str, ...], **settings: int) -> AsyncIterator[LlamaEngine]:
    assert found is not None
    subject = LlamaEngine(
        read_facts(found.path), EngineSettings("smollm2", concepts=concepts, threads=2, **settings)
    )
    async with kept_open(subject):
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    folder = tmp_path_factory.mktemp("packs")
    async with opened(written(folder, pack("random", LAYERS)), context=1024, kv_tokens=5120) as subject:
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def last_layer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    folder = tmp_path_factory.mktemp("packs")
    first, second = pack("one", [14, 29]), pack("two", [14, 29], ("d", "e"), seed=6)
    async with opened(written(folder, first, second), context=512) as subject:
        yield subject


async def prompt_of(engine: LlamaEngine, text: str, count: int) -> tuple[int, ...]:
    return (await engine.tokens.tokenize(text, add_special=True, parse_special=True))[:count]


async def test_what_is_read_while_generating_is_what_a_prompt_of_the_same_tokens_reads(
    engine: LlamaEngine,
) -> None:
    tokens = await prompt_of(engine, TEXT, 17)
    told = await run(engine, asked(tokens, (0, None), max_tokens=20))
    assert [token.position for token in told.generated] == list(range(17, 37))
    assert [token.position for token in told.prompt] == list(range(17))
    assert all(len(token.readout) == 12 for token in [*told.prompt, *told.generated])
    whole = (*tokens, *(token.id for token in told.generated))
    again = await run(engine, asked(whole, (0, None)))
    assert far_apart(told.read, again.read) < CLOSE
    shifted = {place: value for place, value in again.read.items() if place < 36}
    assert far_apart(shifted, {place - 1: value for place, value in again.read.items() if place}) > 0.5


async def test_readouts_change_neither_the_tokens_nor_how_many_there_are(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, "The sea. " + TEXT, 20)
    plain = await run(engine, asked(tokens, max_tokens=12))
    read = await run(engine, asked(tokens, (0, None), max_tokens=12))
    assert [token.id for token in read.generated] == [token.id for token in plain.generated]
    assert read.finished.usage.completion_tokens == plain.finished.usage.completion_tokens == 12
    assert not plain.read
    assert not plain.prompt


async def test_a_cached_prefix_is_used_up_to_the_first_range_and_changes_nothing(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, "Cached. " + TEXT * 20, 300)
    whole = await run(engine, asked(tokens, (0, None)))
    assert whole.finished.usage.cached_tokens == 0
    tail = await run(engine, asked(tokens, (200, None)))
    assert tail.finished.usage.cached_tokens == 200
    assert far_apart(tail.read, {place: whole.read[place] for place in range(200, 300)}) < CLOSE


async def test_a_long_prompt_is_read_and_scored_across_chunks_each_position_once(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, "Chunks. " + TEXT * 50, 560)
    request = replace(asked(tokens, (250, 540), max_tokens=3), score=Score(((100, 520),), top=2))
    told = await run(engine, request)
    by_position = {token.position: token for token in told.prompt}
    assert sorted(by_position) == list(range(100, 540))
    for position, token in by_position.items():
        assert token.id == tokens[position]
        assert (token.logprob is not None) == (100 <= position < 520)
        assert len(token.readout) == (12 if 250 <= position < 540 else 0)
    assert [token.readout for token in told.generated] == [(), (), ()]
    short = await run(engine, asked(tokens[:300], (250, 300)))
    assert far_apart({place: told.read[place] for place in range(250, 300)}, short.read) < CLOSE


async def test_ranges_are_honoured_exactly(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, "Ranges. " + TEXT, 20)
    cases: list[tuple[Ranges, set[int]]] = [
        (((0, 1),), {0}),
        (((5, 9), (7, 12)), set(range(5, 12))),
        (((19, 21),), {19, 20}),
        (((22, None), (3, 4)), {3, 22, 23, 24, 25}),
        (((24, 2**32 - 1),), {24, 25}),
        (((8, 8), (26, 40)), set()),
    ]
    for ranges, positions in cases:
        told = await run(engine, asked(tokens, *ranges, max_tokens=6))
        assert set(told.read) == positions, ranges
        assert [token.position for token in told.generated] == list(range(20, 26))


async def test_the_first_position_is_told_once_with_what_was_asked_of_it(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, "First. " + TEXT, 12)
    told = await run(engine, replace(asked(tokens, (0, 2)), score=Score(((0, 3),))))
    assert [(token.position, bool(token.readout)) for token in told.prompt] == [
        (0, True),
        (1, True),
        (2, False),
    ]
    assert [token.logprob is None for token in told.prompt] == [True, False, False]


async def test_neighbours_that_ask_nothing_get_nothing_and_disturb_nothing(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, "Neighbours. " + TEXT * 4, 60)
    alone = await run(engine, asked(tokens, (40, None), max_tokens=10))
    others = [await prompt_of(engine, f"Number {number}. " + TEXT, 12 + number) for number in range(8)]
    mine = [asyncio.create_task(run(engine, asked(tokens, (40, None), max_tokens=10))) for _ in range(2)]
    theirs = [asyncio.create_task(run(engine, asked(each, max_tokens=15))) for each in others]
    for told in await asyncio.gather(*mine):
        same = [
            position
            for position, (one, other) in enumerate(zip(told.generated, alone.generated, strict=True), 60)
            if one.id == other.id
        ]
        kept = [*range(40, 60), *same[: next((n for n, p in enumerate(same) if p != 60 + n), len(same))]]
        assert far_apart({p: told.read[p] for p in kept}, {p: alone.read[p] for p in kept}) < CLOSE
        assert set(told.read) == set(range(40, 70))
    for told in await asyncio.gather(*theirs):
        assert len(told.generated) == 15
        assert not told.read


async def test_a_stop_token_is_told_with_its_readout_where_tokens_are_read(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, TEXT, 17)
    free = await run(engine, asked(tokens, max_tokens=8))
    stop = free.generated[4].id
    first = next(place for place, token in enumerate(free.generated) if token.id == stop)
    told = await run(engine, replace(asked(tokens, (17, None), max_tokens=8), stop=Stop(token_ids=(stop,))))
    assert told.finished.reason == "stop"
    assert [token.id for token in told.generated] == [token.id for token in free.generated[: first + 1]]
    assert all(token.readout for token in told.generated)
    assert told.finished.usage.completion_tokens == first + 1


async def test_the_tokens_of_a_stop_text_are_told_once_with_their_readouts(engine: LlamaEngine) -> None:
    tokens = await prompt_of(engine, TEXT, 17)
    request = asked(tokens, (17, None), max_tokens=6)
    free = await run(engine, request)
    text = b"".join(token.piece for token in free.generated[2:4]).decode()
    stopped = await run(engine, replace(request, stop=Stop(strings=(text,), ignore_eos=True)))
    assert [token.id for token in stopped.generated] == [
        token.id for token in free.generated[: len(stopped.generated)]
    ]
    assert len(stopped.generated) <= 4 and all(token.readout for token in stopped.generated)
    assert stopped.finished.stop_sequence == text


async def test_text_carries_the_readouts_of_its_tokens_however_it_is_held_back(engine: LlamaEngine) -> None:
    request = Request(
        "text",
        "smollm2",
        TextPrompt("Count: one two three four five six"),
        sampling=Sampling(temperature=0.0),
        max_tokens=16,
        wants_readout=True,
    )

    async def texts(one: Request) -> tuple[str, list[Token], Finished]:
        events = [event async for event in engine.generate(one)]
        assert isinstance(events[-1], Finished), events[-1]
        deltas = [event for event in events if isinstance(event, Delta)]
        tokens = [token for delta in deltas for token in delta.tokens]
        return "".join(delta.text for delta in deltas), tokens, events[-1]

    text, tokens, finished = await texts(request)
    plain, bare, _ = await texts(replace(request, wants_readout=False))
    assert text == plain
    assert [token.id for token in tokens] == [token.id for token in bare]
    assert all(len(token.readout) == 12 for token in tokens)
    assert not any(token.readout for token in bare)
    assert finished.usage.completion_tokens == 16
    stop = text[len(text) // 2 :][:6]
    held, some, ended = await texts(replace(request, stop=Stop(strings=(stop, "never said"))))
    assert held == text[: text.index(stop)]
    assert ended.reason == "stop"
    assert some
    assert [token.readout for token in some] == [token.readout for token in tokens[: len(some)]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    paths = written(tmp_path_factory.mktemp("packs"), pack("random", LAYERS))
    async with opened(paths, context=256, kv_tokens=256, parallel=1) as subject:
        yield subject


async def test_a_preempted_sequence_tells_every_token_once_with_its_readout(narrow: LlamaEngine) -> None:
    tokens = await prompt_of(narrow, "Preempted. " + TEXT * 6, 70)
    other = await prompt_of(narrow, "Urgent. " + TEXT * 12, 130)
    request = asked(tokens, (60, None), max_tokens=30)
    alone = await run(narrow, request)
    events: list[TokenEvent] = []
    has_begun = asyncio.Event()

    async def follow() -> None:
        async for event in narrow.tokens.run(replace(request, priority=5, salt="slow")):
            events.append(event)
            if isinstance(event, Pieces):
                has_begun.set()

    slow = asyncio.create_task(follow())
    await has_begun.wait()
    for number in range(2):
        await run(narrow, replace(asked(other, max_tokens=2), salt=f"urgent {number}"))
        assert number or not slow.done(), "there is one place, and the urgent one took it"
    await slow
    told = Told(events)
    assert set(told.read) == set(range(60, 100)) == set(alone.read)
    prompt = range(60, 70)
    assert far_apart({p: told.read[p] for p in prompt}, {p: alone.read[p] for p in prompt}) < CLOSE


async def test_the_last_token_of_a_full_context_is_read(narrow: LlamaEngine) -> None:
    tokens = await prompt_of(narrow, "Full. " + TEXT * 20, 252)
    request = asked(tokens, (252, None), max_tokens=50)
    told = Told([event async for event in narrow.continue_tokens("smollm2", request)])
    assert set(told.read) == {252, 253, 254, 255}
    assert told.finished.reason == "length"
    assert told.finished.usage.completion_tokens == 4


async def test_packs_stand_side_by_side_and_the_last_layer_is_read_too(
    last_layer: LlamaEngine, engine: LlamaEngine
) -> None:
    (state,) = last_layer.models()
    assert state.readout == ReadoutManifest(("one-a", "one-b", "one-c", "two-d", "two-e"), (14, 29))
    assert engine.models()[0].readout == ReadoutManifest(("random-a", "random-b", "random-c"), tuple(LAYERS))
    tokens = await prompt_of(last_layer, "Last layer. " + TEXT * 20, 300)
    told = await run(last_layer, asked(tokens, (100, None), max_tokens=5))
    assert set(told.read) == set(range(100, 305))
    assert all(len(value) == 10 for value in told.read.values())
    whole = (*tokens, *(token.id for token in told.generated))
    again = await run(last_layer, replace(asked(whole, (290, None)), score=Score(((280, 300),))))
    assert [token.position for token in again.prompt] == list(range(280, 305))
    assert far_apart({p: told.read[p] for p in range(290, 305)}, again.read) < CLOSE


async def test_without_packs_a_readout_is_refused_by_name() -> None:
    async with opened((), context=256, kv_tokens=256) as subject:
        assert subject.models()[0].readout is None
        (event,) = [event async for event in subject.tokens.run(asked((1, 2, 3), (0, None)))]
        assert isinstance(event, Failed)
        assert isinstance(event.error, ReadoutUnavailable)
        text = Request("text", "smollm2", TextPrompt("Hello"), wants_readout=True)
        (first,) = [event async for event in subject.generate(text)]
        assert isinstance(first, Failed)
        assert isinstance(first.error, ReadoutUnavailable)


@pytest.mark.parametrize(
    ("packs", "words"),
    [
        ((pack("wide", LAYERS, hidden=640),), ("640", "576")),
        ((pack("deep", LAYERS, blocks=32),), ("32", "30")),
        ((pack("one", [7]), pack("two", [8])), ("[7]", "[8]")),
    ],
)
async def test_packs_that_do_not_fit_refuse_to_load(
    packs: tuple[ConceptPack, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(LoadFailed) as caught:
        async with opened(written(tmp_path, *packs), context=256, kv_tokens=256):
            pass
    assert all(word in caught.value.message for word in words)
