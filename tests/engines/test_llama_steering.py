"""Steering by concept vectors: exact, refused when it makes no sense, and never felt by anybody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue, LoadFailed
from ganglion.core.events import Delta, Failed, Finished, Pieces, Scored, Token
from ganglion.core.request import (
    ChatPrompt,
    Choice,
    Message,
    Request,
    Score,
    Steer,
    Steering,
    Stop,
    TokenRequest,
    salt_of,
)
from ganglion.core.sampling import ResolvedSampling, Sampling
from ganglion.engines.llama.concepts.pack import ConceptPack, PackManifest, PackModel, merge_packs, write_pack
from ganglion.engines.llama.concepts.steering import Steerer, variant_of
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import load_model
from ganglion.engines.settings import EngineSettings
from ganglion.engines.steering_check import check_steering
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.embedded_model import kept_open

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
HIDDEN, BLOCKS = 576, 30
LAYERS = [0, 6, 12, 18]
SPAN = 4.0
TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
MANIFEST = ReadoutManifest(("calm", "formal"), tuple(LAYERS))
CALM = (Steer("calm", 1.0),)


def pack(concepts: tuple[str, ...] = ("calm", "formal"), *, hidden: int = HIDDEN) -> ConceptPack:
    rng = np.random.default_rng(7)
    vectors = {}
    for layer in LAYERS:
        drawn = rng.normal(size=(len(concepts), hidden))
        vectors[layer] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    spans = {str(layer): [SPAN] * len(concepts) for layer in LAYERS}
    model = PackModel("smollm2", "llama", hidden, BLOCKS)
    return ConceptPack(PackManifest("moods", list(concepts), LAYERS, model, spans=spans), vectors)


@asynccontextmanager
async def opened(folder: Path, **settings: object) -> AsyncIterator[LlamaEngine]:
    assert found is not None
    path = folder / "moods.safetensors"
    write_pack(pack(), path)
    asked = {"context": 512, "kv_tokens": 4608, "parallel": 9, "concepts": (str(path),)} | settings
    subject = LlamaEngine(read_facts(found.path), EngineSettings("m", **asked))  # type: ignore[arg-type]
    async with kept_open(subject):
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    async with opened(tmp_path_factory.mktemp("packs")) as subject:
        yield subject


async def tokens_of(engine: LlamaEngine, text: str = TEXT) -> tuple[int, ...]:
    return await engine.tokens.tokenize(text, add_special=True, parse_special=False)


async def run(
    engine: LlamaEngine,
    tokens: tuple[int, ...],
    steering: Steering = (),
    *,
    tenant: str = "",
    max_tokens: int = 4,
    score: Score | None = None,
) -> tuple[list[Token], Finished]:
    """All tokens that were told of, those of the prompt first."""
    request = TokenRequest(
        "r",
        tokens,
        max_tokens,
        sampling=ResolvedSampling(temperature=0.0),
        stop=Stop(ignore_eos=True),
        top_logprobs=0,
        score=score,
        salt=salt_of(tenant, steering),
        in_tokens=True,
        steering=steering,
    )
    events = [event async for event in engine.tokens.run(request)]
    assert isinstance(events[-1], Finished), events[-1]
    told = [token for event in events if isinstance(event, Scored) for token in event.tokens]
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    return [*told, *(token for piece in pieces for token in piece.tokens)], events[-1]


def logprobs(told: list[Token]) -> list[float | None]:
    return [token.logprob for token in told]


@pytest.fixture(scope="module")
def context() -> NativeContext:
    assert found is not None
    model = load_model(open_library(), str(found.path), gpu_layers=0)
    assert (model.hidden_size, model.block_count) == (HIDDEN, BLOCKS)
    return model.new_context(
        cells=256, slots=1, is_unified=True, batch=64, threads=2, kv_type="f16", flash_attention=None
    )


@pytest.mark.model
async def test_a_context_is_steered_until_it_is_cleared_also_between_steps_of_one_shape(
    context: NativeContext,
) -> None:
    def decode() -> np.ndarray:
        context.trim(0, 0)
        (row,) = context.decode([(0, 0, [5, 6, 7, 8], True)])
        assert row is not None
        return context.logits(row).copy()

    plain = decode()
    vectors = np.zeros((BLOCKS - 1, HIDDEN), np.float32)
    vectors[9] = np.random.default_rng(3).normal(size=HIDDEN) / 4
    context.steer(vectors)
    once = decode()
    context.steer(2 * vectors)
    twice = decode()
    context.steer(None)
    assert np.array_equal(decode(), plain)
    context.steer(vectors)
    assert np.array_equal(decode(), once)
    context.steer(np.zeros_like(vectors))
    assert np.array_equal(decode(), plain)
    context.steer(None)
    assert min(np.abs(plain - once).max(), np.abs(once - twice).max()) > 0.05


@pytest.mark.model
async def test_strength_moves_the_logprobs_and_strength_zero_does_not(engine: LlamaEngine) -> None:
    tokens = await tokens_of(engine)
    score = Score(((0, None),))
    plain, _ = await run(engine, tokens, max_tokens=0, score=score)
    zero, _ = await run(engine, tokens, (Steer("calm", 0.0),), max_tokens=0, score=score)
    calm, _ = await run(engine, tokens, CALM, max_tokens=0, score=score)
    opposite, _ = await run(engine, tokens, (Steer("calm", -1.0),), max_tokens=0, score=score)
    one_layer, _ = await run(engine, tokens, (Steer("calm", 1.0, (12,)),), max_tokens=0, score=score)
    again, _ = await run(engine, tokens, CALM, tenant="t", max_tokens=0, score=score)
    after, _ = await run(engine, tokens, tenant="t", max_tokens=0, score=score)
    assert logprobs(zero) == logprobs(plain)
    assert logprobs(after) == logprobs(plain), "nothing is left of the steering"
    assert logprobs(again) == logprobs(calm)
    assert len({tuple(logprobs(each)) for each in (plain, calm, opposite, one_layer)}) == 4


@pytest.mark.model
async def test_cached_kv_is_found_only_by_those_who_are_steered_alike(engine: LlamaEngine) -> None:
    tokens = await tokens_of(engine, "Once. " + TEXT * 2)
    formal = (Steer("formal", 1.0),)
    cached = [
        (await run(engine, tokens, steering, tenant="kv", max_tokens=1))[1].usage.cached_tokens
        for steering in ((), CALM, formal, CALM, (), (Steer("calm", 1.5),), formal)
    ]
    rest = len(tokens) - 1
    assert cached == [0, 0, 0, rest, rest, 0, rest]


@pytest.mark.model
async def test_among_neighbours_of_other_steerings_an_answer_is_what_it_is_alone(tmp_path: Path) -> None:
    steerings: list[Steering] = [
        (),
        CALM,
        (Steer("calm", -1.0),),
        (Steer("formal", 1.0),),
        (Steer("formal", 1.0), Steer("calm", 0.5)),
        (Steer("formal", 2.0, (6,)),),
        (),
        CALM,
    ]
    async with opened(tmp_path, is_deterministic=True, context=256, kv_tokens=2304) as subject:
        tokens = await tokens_of(subject)
        alone = [await run(subject, tokens, each) for each in steerings]
        together = await asyncio.gather(*(run(subject, tokens, each) for each in steerings))
    for (one, _), (other, _) in zip(alone, together, strict=True):
        assert [token.id for token in one] == [token.id for token in other]
        assert logprobs(one) == logprobs(other)
    assert len({tuple(logprobs(told)) for told, _ in alone}) == len(set(steerings))


@pytest.mark.model
async def test_an_answer_held_to_a_choice_is_steered_too(engine: LlamaEngine) -> None:
    request = Request(
        "r",
        "m",
        ChatPrompt((Message("user", "Yes or no?"),)),
        sampling=Sampling(temperature=0.0),
        constraint=Choice(("yes", "no")),
        max_tokens=8,
        steering=(Steer("formal", 3.0),),
    )
    events = [event async for event in engine.generate(request)]
    assert isinstance(events[-1], Finished), events[-1]
    assert "".join(event.text for event in events if isinstance(event, Delta)) in ("yes", "no")


@pytest.mark.model
async def test_what_cannot_be_steered_is_refused_before_the_worker_hears_of_it(engine: LlamaEngine) -> None:
    (state,) = engine.models()
    assert state.readout == MANIFEST
    wrong = (Steer("nothing", 1.0),)
    request = TokenRequest("r", (1, 2), 1, salt=salt_of("", wrong), steering=wrong)
    (event,) = [event async for event in engine.tokens.run(request)]
    assert isinstance(event, Failed)
    assert (event.error.code, event.error.param) == ("invalid_value", "steering")
    careless = TokenRequest("r", (1, 2), 1, salt="tenant", steering=CALM)
    with pytest.raises(AssertionError):
        _ = [event async for event in engine.tokens.run(careless)]


@pytest.mark.parametrize(
    ("steer", "said"),
    [
        (Steer("anger", 1.0), "'anger'"),
        (Steer("calm", float("nan")), "nan"),
        (Steer("calm", float("inf")), "inf"),
        (Steer("calm", 100.5), "100.5"),
        (Steer("calm", 1.0, (7,)), "Layer 7"),
        (Steer("calm", 1.0, (6, -1)), "Layer -1"),
        (Steer("calm", 1.0, (0,)), "Layer 0 cannot be steered"),
        (Steer("calm", 1.0, ()), "No layer"),
        (Steer("calm", 1.0, (6,) * 99), "99 layers"),
    ],
)
async def test_a_steer_that_makes_no_sense_says_why(steer: Steer, said: str) -> None:
    with pytest.raises(InvalidValue, match=said) as raised:
        check_steering((Steer("calm", 1.0), steer), MANIFEST)
    assert raised.value.param == "steering"


async def test_models_without_concepts_or_with_those_of_layer_0_alone_cannot_be_steered() -> None:
    check_steering((), None)
    check_steering((Steer("calm", -100.0), Steer("formal", 0.5, (6, 18))), MANIFEST)
    for manifest in (None, ReadoutManifest(("calm",), (0,))):
        with pytest.raises(InvalidValue) as raised:
            check_steering(CALM, manifest)
        assert raised.value.param == "steering"
    with pytest.raises(InvalidValue, match="65 concepts"):
        check_steering(CALM * 65, MANIFEST)


async def test_vectors_are_strength_times_span_times_unit_vector_spread_over_the_layers() -> None:
    drawn = pack()
    subject = Steerer(merge_packs([drawn]), BLOCKS)
    key = variant_of([("calm", 2.0, None), ("formal", -0.5, [12]), ("calm", 0.0, [6])])
    assert key == variant_of([("formal", -0.5, [12]), ("calm", 2.0, None)])
    assert subject.knows(key)
    assert not subject.knows(variant_of([("anger", 1.0, None)]))
    expected = np.zeros((BLOCKS - 1, HIDDEN), np.float32)
    for layer in (6, 12, 18):
        expected[layer - 1] = 2.0 / 3 * SPAN * drawn.vectors[layer][0]
    expected[11] -= 0.5 * SPAN * drawn.vectors[12][1]
    assert subject.vectors(key) == pytest.approx(expected, abs=1e-6)
    assert variant_of([]) == variant_of([("calm", 0.0, None)]) == ""


@pytest.mark.model
async def test_a_pack_of_another_model_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "moods.safetensors"
    write_pack(pack(hidden=64), path)
    assert found is not None
    settings = EngineSettings("m", context=256, kv_tokens=256, concepts=(str(path),))
    subject = LlamaEngine(read_facts(found.path), settings)
    with pytest.raises(LoadFailed, match="30 layers of width 64"):
        await subject.open()
    await subject.close()
