"""Vectors of the embedded model: equal to the mean of its last hidden states, whoever else asks."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from ganglion.core.engine import EmbedRequest, RankRequest
from ganglion.core.errors import ContextLengthExceeded, InvalidValue, UnsupportedParameter
from ganglion.core.events import Failed, Finished
from ganglion.core.request import ChatPrompt, Message, Request, TextPrompt, TokenPrompt
from ganglion.engines.embedder import joined, parts_of
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model
from ganglion.engines.llama.plan import VectorPlan
from ganglion.engines.llama.worker.embedding import BatchEmbedder
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.ipc import Embed, SpecialTokens
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
Vector = npt.NDArray[np.float32]
TEXTS = ("The cat sat on the mat.", "A stone.", "Rain in the afternoon, and sun after it. " * 30, "Yes")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaEngine]:
    assert found is not None
    subject = LlamaEngine(read_facts(found.path), EngineSettings("smollm2", context=1024, kv_tokens=1024))
    await subject.open()
    yield subject
    await subject.close()


@pytest.fixture(scope="module")
def model() -> NativeModel:
    assert found is not None
    return load_model(open_library(), str(found.path), gpu_layers=0)


def expected(model: NativeModel, text: str) -> Vector:
    """The mean of all rows, from one batch of one input in a context of its own."""
    context = model.new_context(
        cells=512,
        slots=1,
        is_unified=True,
        batch=512,
        threads=2,
        kv_type="f16",
        flash_attention=None,
        pooling="none",
    )
    tokens = model.tokenize(text, add_special=True, parse_special=True)
    context.decode([(0, 0, tokens, False)], [(0, len(tokens))])
    mean = np.mean([context.vectors_of(row, 1)[0].astype(np.float64) for row in range(len(tokens))], axis=0)
    context.free()
    result: Vector = (mean / np.linalg.norm(mean)).astype(np.float32)
    return result


def vector(data: bytes) -> Vector:
    return np.frombuffer(data, np.float32)


def asking(*inputs: TextPrompt | TokenPrompt, **more: bool) -> EmbedRequest:
    return EmbedRequest("e", "smollm2", inputs, **more)


async def test_a_vector_is_the_normalised_mean_of_its_tokens(engine: LlamaEngine, model: NativeModel) -> None:
    embedded = await engine.embed(asking(*map(TextPrompt, TEXTS)))
    for text, data in zip(TEXTS, embedded.vectors, strict=True):
        assert np.linalg.norm(vector(data)) == pytest.approx(1.0, abs=1e-5)
        assert vector(data) @ expected(model, text) > 0.999
    counted = [len(model.tokenize(text, add_special=True, parse_special=True)) for text in TEXTS]
    assert embedded.prompt_tokens == sum(counted)


async def test_text_and_its_token_ids_have_one_vector(engine: LlamaEngine, model: NativeModel) -> None:
    tokens = tuple(model.tokenize(TEXTS[0], add_special=True, parse_special=True))
    embedded = await engine.embed(asking(TextPrompt(TEXTS[0]), TokenPrompt(tokens)))
    assert vector(embedded.vectors[0]) == pytest.approx(vector(embedded.vectors[1]), abs=1e-3)


async def test_an_unnormalised_vector_points_the_same_way(engine: LlamaEngine) -> None:
    plain = vector((await engine.embed(asking(TextPrompt(TEXTS[0]), is_normalized=False))).vectors[0])
    unit = vector((await engine.embed(asking(TextPrompt(TEXTS[0])))).vectors[0])
    assert np.linalg.norm(plain) > 1.5
    assert plain / np.linalg.norm(plain) == pytest.approx(unit, abs=2e-3)


async def test_many_ask_at_once_while_another_generates(engine: LlamaEngine, model: NativeModel) -> None:
    chat = Request("c", "smollm2", ChatPrompt((Message("user", "Tell me a story."),)), max_tokens=24)

    async def talk() -> object:
        return [event async for event in engine.generate(chat)][-1]

    talking = asyncio.create_task(talk())
    answers = await asyncio.gather(
        *(engine.embed(asking(TextPrompt(f"Input number {number}."))) for number in range(12))
    )
    for number, answer in enumerate(answers):
        assert vector(answer.vectors[0]) @ expected(model, f"Input number {number}.") > 0.999
    assert isinstance(await talking, Finished)


async def test_what_cannot_be_embedded_is_refused_by_name(engine: LlamaEngine) -> None:
    with pytest.raises(ContextLengthExceeded) as long:
        await engine.embed(asking(TextPrompt("Yes"), TokenPrompt((5,) * 1025)))
    assert long.value.param == "input[1]"
    with pytest.raises(InvalidValue, match="vocabulary") as unknown:
        await engine.embed(asking(TokenPrompt((5, 10**6))))
    assert unknown.value.param == "input[0]"
    with pytest.raises(InvalidValue, match="empty"):
        await engine.embed(asking(TokenPrompt(())))


async def test_documents_are_ranked_by_the_angle_to_the_query(engine: LlamaEngine) -> None:
    documents = ("Bananas are yellow.", "The cat sat on the mat.", "Quarterly revenue rose.")
    ranked = await engine.rank(RankRequest("r", "smollm2", "The cat sat on a mat.", documents))
    assert max(range(3), key=ranked.scores.__getitem__) == 1
    assert all(-1.001 <= score <= 1.001 for score in ranked.scores)


async def test_what_vectors_take_is_told_once_there_are_some(engine: LlamaEngine) -> None:
    (state,) = engine.models()
    assert state.memory_mb == (engine.plan.required_bytes + engine.plan.vectors.size_bytes) >> 20
    assert set(state.capabilities) >= {"chat", "completion"}


async def test_prompts_are_read_and_written_back(engine: LlamaEngine) -> None:
    chat = Request("r", "smollm2", ChatPrompt((Message("user", "Hi"),)))
    read = await engine.read(chat)
    assert read.text is not None
    assert read.text.endswith("<|im_start|>assistant\n")
    assert await engine.detokenize("smollm2", read.tokens) == read.text
    assert b"".join(await engine.pieces("smollm2", read.tokens)).decode() == read.text
    info = await engine.tokenizer_info("smollm2")
    assert (info.vocabulary_size, info.context_length) == (49152, 1024)
    assert info.eos_id in info.end_ids


async def test_a_model_without_signs_for_it_refuses_to_fill_in(engine: LlamaEngine) -> None:
    request = Request("s", "smollm2", TextPrompt("def f(", suffix="return 1"))
    events = [event async for event in engine.generate(request)]
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, UnsupportedParameter)
    assert events[-1].error.param == "suffix"


@pytest.mark.parametrize("batch", [32, 512])
async def test_pooling_by_the_library_and_by_us_agree(model: NativeModel, batch: int) -> None:
    ours = BatchEmbedder(model, VectorPlan("mean", True, 512, batch), threads=2)
    theirs = BatchEmbedder(model, VectorPlan("mean", False, 512, 512), threads=2)
    inputs = [model.tokenize(text, add_special=True, parse_special=True) for text in TEXTS]
    frames = [Embed(1, inputs[:1], True), Embed(2, inputs[1:], True)]
    made = [list(maker.answer(frames, lambda: None)) for maker in (ours, theirs)]
    assert [answer.id for answer in made[0]] == [1, 2]
    for one, other in zip(made[0], made[1], strict=True):
        for left, right in zip(one.vectors, other.vectors, strict=True):
            assert vector(left) @ vector(right) > 0.999


async def test_the_last_token_stands_for_its_input_where_a_model_says_so(model: NativeModel) -> None:
    ours = BatchEmbedder(model, VectorPlan("last", True, 512, 32), threads=2)
    theirs = BatchEmbedder(model, VectorPlan("last", False, 512, 512), threads=2)
    frame = Embed(1, [model.tokenize(TEXTS[2], add_special=True, parse_special=True)], True)
    (one,), (other,) = (list(maker.answer([frame], lambda: None)) for maker in (ours, theirs))
    assert vector(one.vectors[0]) @ vector(other.vectors[0]) > 0.999


async def test_questions_hold_a_bounded_number_of_tokens_in_order() -> None:
    inputs = [(1,) * 700, (2,) * 300, (3,) * 300, (4,) * 1500, *((5,) for _ in range(70))]
    parts = parts_of(inputs)
    assert [each for part in parts for each in part] == inputs
    assert [len(part) for part in parts] == [2, 1, 1, 64, 6]


async def test_a_pair_is_joined_by_the_vocabularys_signs() -> None:
    bert = SpecialTokens(bos=1, eos=2, separator=2, adds_bos=True, adds_eos=True, adds_separator=True)
    assert joined((7,), (8, 9), bert) == (1, 7, 2, 2, 8, 9, 2)
    assert joined((7,), (8,), SpecialTokens()) == (7, 8)
    assert array("f", np.float32(0.5).tobytes())[0] == 0.5
