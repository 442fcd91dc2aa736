"""The engine computes what the model says, alone or among neighbours."""

import asyncio
import math

import numpy as np
import pytest
from msgspec import structs

from ganglion.core.events import Delta
from ganglion.core.request import ChatPrompt, Message, Request, Stop, TokenPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import load_model
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model

pytestmark = pytest.mark.model

TEXT = (
    "The ganglion is a cluster of neurons in the peripheral nervous system. Signals arrive, are weighed, and "
    "leave again; what looks like one answer is the work of many cells that never see the whole."
)


@pytest.fixture(scope="module")
def facts():
    found = embedded_model()
    return read_facts(found.path)


def engine(facts, **changes: object) -> LlamaEngine:
    settings = EngineSettings("m", context=512, kv_tokens=17 * 512, parallel=17)
    return LlamaEngine(facts, structs.replace(settings, **changes))


def true_logprobs(path: str, tokens: list[int]) -> list[float]:
    """Each token's logprob given those before it, straight from the library, one batch, numpy alone."""
    model = load_model(open_library(), path, gpu_layers=0)
    context = model.new_context(
        cells=512, slots=1, is_unified=True, batch=512, threads=2, kv_type="f16", flash_attention=False
    )
    rows = context.decode([(0, at, [token], True) for at, token in enumerate(tokens)])
    values = []
    for row, token in zip(rows[:-1], tokens[1:], strict=True):
        assert row is not None
        logits = context.logits(row).astype(np.float64)
        values.append(float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
    context.free()
    model.free()
    return values


async def forced_logprob(subject: LlamaEngine, tokens: list[int], end: int) -> float:
    """The engine's logprob of one token: the bias forces the choice, the report stays the model's own."""
    request = Request(
        id="force",
        model="m",
        prompt=TokenPrompt(tuple(tokens[:end])),
        sampling=Sampling(temperature=0.0, logit_bias=((tokens[end], 100.0),)),
        max_tokens=1,
        top_logprobs=0,
    )
    events = [event async for event in subject.generate(request)]
    (token,) = (token for event in events if isinstance(event, Delta) for token in event.tokens)
    assert token.id == tokens[end]
    assert token.logprob is not None
    return token.logprob


@pytest.mark.parametrize(
    ("changes", "tolerance", "furthest"),
    [
        pytest.param({"is_deterministic": True}, 1e-3, 2e-3, id="deterministic"),
        pytest.param({"is_recast": False}, 0.02, 0.5, id="as-it-is"),
        pytest.param({}, 0.04, 0.7, id="recast"),
    ],
)
async def test_perplexity_of_a_fixed_text_is_the_librarys_own(facts, changes, tolerance, furthest):
    subject = engine(facts, **changes)
    await subject.open()
    try:
        tokens = list(await subject.tokens.tokenize(TEXT, add_special=True, parse_special=False))
        ours = [await forced_logprob(subject, tokens, end) for end in range(1, len(tokens))]
    finally:
        await subject.close()
    truth = await asyncio.to_thread(true_logprobs, facts.path, tokens)
    perplexity, expected = (math.exp(-sum(values) / len(values)) for values in (ours, truth))
    assert perplexity == pytest.approx(expected, rel=tolerance)
    assert max(abs(one - other) for one, other in zip(ours, truth, strict=True)) < furthest


QUESTION = "Describe a harbour at dawn."
NEIGHBOURS = [
    QUESTION,  # whose cache could be reused
    "Describe harbour at dawn.",  # one token shorter: side by side it would leave a lone token behind
    *("Tell me about " + "very " * (number * 3) + "old towns." for number in range(14)),
]


async def test_greedy_output_is_the_same_alone_and_among_sixteen_neighbours_in_deterministic_mode(facts):
    subject = engine(facts, is_deterministic=True)

    async def answer(text: str, temperature: float) -> list[tuple[int, float | None]]:
        """The tokens of an answer, each with its logprob to the last bit."""
        request = Request(
            id="one",
            model="m",
            prompt=ChatPrompt((Message("user", text),)),
            sampling=Sampling(temperature=temperature),
            stop=Stop(ignore_eos=True),
            max_tokens=32,
            top_logprobs=0,
        )
        events = [event async for event in subject.generate(request)]
        return [
            (token.id, token.logprob)
            for event in events
            if isinstance(event, Delta)
            for token in event.tokens
        ]

    await subject.open()
    try:
        alone = await answer(QUESTION, 0.0)
        neighbours = [answer(text, 1.0) for text in NEIGHBOURS]
        *_, among = await asyncio.gather(*neighbours, answer(QUESTION, 0.0))
        again = await answer(QUESTION, 0.0)
    finally:
        await subject.close()
    assert len(alone) == 32
    assert among == alone
    assert again == alone
