"""Readouts and steering by vLLM: what our own forward pass and llama.cpp compute of the same weights."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from msgspec import structs
from readout_runs import BLOCKS, CLOSE, Told, asked, far_apart, pack, run, written
from reference_model import Floats, Forward, ReferenceModel

from ganglion.core.engine import EmbedRequest, ReadoutManifest
from ganglion.core.errors import InvalidValue
from ganglion.core.events import Failed, Pieces
from ganglion.core.request import Score, Steer, Steering, TextPrompt, TokenRequest, salt_of
from ganglion.engines.concepts.pack import merge_packs
from ganglion.engines.concepts.steering import Steerer, variant_of
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.gguf import read_facts
from support.checkpoint_files import bfloat16
from support.embedded_model import embedded_model, kept_open
from support.vllm_node import vllm_engine, vllm_settings
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.model,
    pytest.mark.vllm,
    pytest.mark.timeout(600),
]
LAYERS = [0, 7, 14, 21, 29]
CONCEPTS = 3
SPAN = 8.0
CONTEXT = 256
EXACT = 1e-4
"""Of what a random direction sees of a stream: both compute the same numbers in float32, in another order."""
TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank, with nothing to do"
PACK = pack("random", LAYERS)
PACK.manifest.spans.update({str(layer): [SPAN] * CONCEPTS for layer in LAYERS})
CALM: Steering = (Steer("random-a", 4.0),)
OTHER: Steering = (Steer("random-b", -5.0, (7, 21)), Steer("random-a", 1.0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    settings = structs.replace(
        vllm_settings(dtype="float32"),
        context=CONTEXT,
        parallel=8,
        concepts=written(tmp_path_factory.mktemp("packs"), PACK),
    )
    async with vllm_engine(settings) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llama(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    settings = EngineSettings(
        "m",
        context=CONTEXT,
        parallel=2,
        threads=2,
        concepts=written(tmp_path_factory.mktemp("packs"), PACK),
    )
    opened = LlamaEngine(read_facts(embedded_model().path), settings)
    async with kept_open(opened):
        yield opened


class Steered(ReferenceModel):
    """The reference with the checkpoint's weights, which are rounded to 16 bits, and steered."""

    def __init__(self, steering: Steering) -> None:
        super().__init__(embedded_model().path)
        terms = [
            (each.concept, each.strength, list(each.layers) if each.layers else None) for each in steering
        ]
        key = variant_of(terms)
        self._pushes = Steerer(merge_packs([PACK]), BLOCKS).vectors(key) if key else None

    def weight(self, name: str, rows: Sequence[int] | slice = slice(None)) -> Floats:
        rounded = bfloat16(super().weight(name, rows)).astype(np.uint32) << 16
        return rounded.view(np.float32)

    def after(self, layer: int, stream: Floats) -> Floats:
        stream = super().after(layer, stream)
        return stream if self._pushes is None or layer == 0 else stream + self._pushes[layer - 1]


@cache
def reference(tokens: tuple[int, ...], steering: Steering = ()) -> Forward:
    return Steered(steering).forward(tokens)


def error_of(read: dict[int, np.ndarray], forward: Forward) -> float:
    """The largest error of a readout, beside what a random direction usually sees of its stream."""
    places = sorted(read)
    found = np.stack([read[place] for place in places]).reshape(len(places), len(LAYERS), CONCEPTS)
    worst = 0.0
    for at, layer in enumerate(LAYERS):
        stream = forward.residuals[layer][places]
        usual = np.linalg.norm(stream, axis=1, keepdims=True) / np.sqrt(stream.shape[1])
        worst = max(worst, float((np.abs(found[:, at] - stream @ PACK.vectors[layer].T) / usual).max()))
    return worst


async def tokens_of(engine: VllmEngine, text: str = TEXT) -> tuple[int, ...]:
    return await engine.tokens.tokenize(text, add_special=True, parse_special=True)


def steered(request: TokenRequest, steering: Steering, tenant: str = "") -> TokenRequest:
    return replace(request, steering=steering, salt=salt_of(tenant, steering))


def whole(prompt: tuple[int, ...], told: Told) -> tuple[int, ...]:
    return (*prompt, *(token.id for token in told.generated))


async def test_readouts_are_those_of_the_same_weights_elsewhere(
    engine: VllmEngine, llama: LlamaEngine
) -> None:
    assert engine.models()[0].readout == ReadoutManifest(("random-a", "random-b", "random-c"), tuple(LAYERS))
    prompt = await tokens_of(engine)
    told = await run(engine, asked(prompt, (0, None), max_tokens=8))
    assert sorted(told.read) == list(range(len(prompt) + 8)), "the prompt's tokens and all that came of them"
    assert error_of(told.read, reference(whole(prompt, told))) < EXACT
    theirs = await run(llama, asked(whole(prompt, told), (0, None)))
    # The last layer's numbers are of its own length; llama.cpp rounds activations to 8 bits.
    assert far_apart(told.read, theirs.read) < 2 * CLOSE
    moved = {place: value for place, value in theirs.read.items() if place < len(told.read) - 1}
    assert far_apart({p: told.read[p + 1] for p in moved}, moved) > 0.5


async def test_steering_moves_the_stream_and_the_logprobs_as_the_reference_says(
    engine: VllmEngine, llama: LlamaEngine
) -> None:
    prompt = await tokens_of(engine)
    changes: list[list[np.ndarray]] = []
    scores: dict[Steering, np.ndarray] = {}
    for subject in (engine, llama):
        scores = {}
        for steering in ((), CALM, OTHER):
            request = replace(asked(prompt, (0, None)), score=Score(((1, None),)), top_logprobs=0)
            told = await run(subject, steered(request, steering))
            scores[steering] = np.array([t.logprob for t in told.prompt if t.logprob is not None])
            if subject is engine:
                forward = reference(prompt, steering)
                assert error_of(told.read, forward) < EXACT, steering
                rows = np.arange(len(prompt) - 1)
                assert np.abs(scores[steering] - forward.logprobs[rows, list(prompt[1:])]).max() < 1e-3
        changes.append([scores[each] - scores[()] for each in (CALM, OTHER)])
    for ours, theirs in zip(*changes, strict=True):
        assert np.abs(theirs).mean() > 0.15, "it is felt"
        assert np.corrcoef(ours, theirs)[0, 1] > 0.9


async def test_what_runs_beside_a_steered_request_is_what_it_is_alone(engine: VllmEngine) -> None:
    prompt = await tokens_of(engine, "Beside. " + TEXT)
    request = asked(prompt, (0, None), max_tokens=8)
    steerings = ((), CALM, OTHER)
    alone = [await run(engine, steered(request, each, "alone")) for each in steerings]
    together = await asyncio.gather(
        *(run(engine, steered(request, each, "together")) for each in steerings),
        *(run(engine, asked(prompt, max_tokens=12)) for _ in range(3)),
    )
    for one, other in zip(alone, together, strict=False):
        assert whole(prompt, one) == whole(prompt, other)
        assert far_apart(one.read, other.read) < EXACT
    assert len({whole(prompt, each) for each in alone}) == 3
    assert not any(each.read for each in together[3:])


async def test_cached_kv_is_found_only_by_those_who_are_steered_alike(engine: VllmEngine) -> None:
    prompt = await tokens_of(engine, "Cached. " + TEXT * 4)
    cached = []
    for steering in ((), CALM, CALM, OTHER, ()):
        told = await run(engine, steered(asked(prompt, (len(prompt), None), max_tokens=1), steering))
        cached.append(told.finished.usage.cached_tokens > len(prompt) // 2)
        assert error_of(told.read, reference(whole(prompt, told), steering)) < EXACT
    assert cached == [False, False, True, False, True]


async def test_a_prompt_that_is_read_is_computed_although_it_is_cached(
    engine: VllmEngine,
) -> None:
    prompt = (await tokens_of(engine, "Again. " + TEXT * 12))[:200]
    first = await run(engine, asked(prompt, (0, None)))
    again = await run(engine, asked(prompt, (100, None)))
    assert sorted(again.read) == list(range(100, 200))
    assert far_apart(again.read, {place: first.read[place] for place in again.read}) < EXACT


async def test_ranges_are_honoured_exactly(engine: VllmEngine) -> None:
    prompt = (await tokens_of(engine, "Ranges. " + TEXT))[:20]
    cases = [
        (((0, 1),), {0}),
        (((5, 9), (7, 12)), set(range(5, 12))),
        (((19, 21),), {19, 20}),
        (((22, None), (3, 4)), {3, 22, 23, 24, 25}),
        (((24, 2**32 - 1),), {24, 25}),
        (((8, 8), (26, 40)), set()),
    ]
    answers = await asyncio.gather(*(run(engine, asked(prompt, *each, max_tokens=6)) for each, _ in cases))
    for told, (ranges, positions) in zip(answers, cases, strict=True):
        assert set(told.read) == positions, ranges
        assert [token.position for token in told.generated] == list(range(20, 26))


async def test_the_last_token_of_a_full_context_is_read(engine: VllmEngine) -> None:
    prompt = (await tokens_of(engine, "Full. " + TEXT * 20))[: CONTEXT - 3]
    told = await run(engine, asked(prompt, (CONTEXT - 5, None), max_tokens=3))
    assert sorted(told.read) == list(range(CONTEXT - 5, CONTEXT))
    assert error_of(told.read, reference(whole(prompt, told))) < EXACT


async def test_whoever_leaves_while_he_is_read_leaves_nothing_behind(engine: VllmEngine) -> None:
    prompt = await tokens_of(engine, "Gone. " + TEXT)
    for _ in range(3):
        async with aclosing(engine.tokens.run(asked(prompt, (0, None), max_tokens=150))) as events:
            async for event in events:
                if isinstance(event, Pieces):
                    break
    await until(lambda: engine.models()[0].load.running == 0, within_s=30)
    told = await run(engine, asked(prompt, (0, None), max_tokens=4))
    assert error_of(told.read, reference(whole(prompt, told))) < EXACT


async def test_what_cannot_be_done_is_refused_by_name(engine: VllmEngine) -> None:
    wrong = (Steer("nothing", 1.0),)
    [event] = [event async for event in engine.tokens.run(steered(asked((1, 2), max_tokens=1), wrong))]
    assert isinstance(event, Failed)
    assert event.error.param == "steering"
    with pytest.raises(InvalidValue, match="makes no vectors") as caught:
        await engine.embed(EmbedRequest("e", "smollm2", (TextPrompt("a"),)))
    assert caught.value.hint


def settings_with(**changes: object) -> EngineSettings:
    vllm = structs.replace(EngineSettings().vllm, python="nowhere", **changes)
    return structs.replace(EngineSettings("m", concepts=("pack",)), vllm=vllm)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculative": '{"method": "ngram", "num_speculative_tokens": 2}'}, "engine.vllm.speculative"),
        ({"data_parallel": 2}, "engine.vllm.data_parallel"),
        ({"executor": "ray"}, "engine.vllm.executor"),
        ({"extra": '{"enable_dbo": true}'}, "engine.vllm.extra"),
    ],
)
async def test_settings_that_hide_rows_do_not_go_with_packs(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    facts = replace(read_facts(embedded_model().path), path=str(tmp_path / "model.safetensors"))
    with pytest.raises(InvalidValue) as caught:
        VllmEngine(facts, settings_with(**changes))
    assert caught.value.param == named
    VllmEngine(facts, settings_with())
