"""Scores against logprobs computed without any of our code, and against the library's raw logits."""

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from reference_model import TEXT, Floats, ReferenceModel, cosines, forward_of, log_softmax

from ganglion.core.events import Finished, Scored, Token, TokenEvent
from ganglion.core.request import Score, TokenRequest
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.repack import load_repacked
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find

embedded = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(embedded is None, reason="the embedded model is not installed"),
]
PATH = embedded.path if embedded is not None else Path("nowhere")
TOP = 20
CLOSE = 0.3
"""How far logprobs lie apart at most because activations are rounded to 8 bits, with a margin."""

Logprobs = npt.NDArray[np.float64]
"""[tokens, vocabulary]"""


@cache
def model() -> NativeModel:
    return load_repacked(open_library(), str(PATH))


@cache
def prompt() -> tuple[int, ...]:
    return tuple(model().tokenize(TEXT, add_special=True, parse_special=True))


@cache
def bare() -> Logprobs:
    """The library in a bare loop, one token at a time."""
    context = model().new_context(
        cells=512, slots=1, is_unified=True, batch=512, threads=2, kv_type="f16", flash_attention=None
    )
    rows = context.decode([(0, position, [token], True) for position, token in enumerate(prompt())])
    logits = np.stack([context.logits(row).copy() for row in rows if row is not None])
    context.free()
    return log_softmax(logits)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def told() -> AsyncIterator[list[Token]]:
    """Every token of the prompt, scored by the engine."""
    engine = LlamaEngine(read_facts(PATH), EngineSettings("smollm2", context=512))
    await engine.open()
    try:
        request = TokenRequest("score", prompt(), 0, score=Score(((0, None),), TOP))
        events: list[TokenEvent] = [event async for event in engine.tokens.run(request)]
        assert isinstance(events[-1], Finished), events[-1]
        yield [token for event in events if isinstance(event, Scored) for token in event.tokens]
    finally:
        await engine.close()


def of_tokens(logprobs: Logprobs) -> Logprobs:
    """What was said, one token before, of each token but the first."""
    return logprobs[np.arange(len(prompt()) - 1), list(prompt()[1:])]


def scores(told: list[Token]) -> Logprobs:
    assert [token.id for token in told] == list(prompt())
    assert told[0].logprob is None
    return np.array([token.logprob for token in told[1:]], np.float64)


async def test_scores_are_the_logprobs_of_the_dequantised_weights(told: list[Token]) -> None:
    apart = np.abs(scores(told) - of_tokens(forward_of(PATH, prompt()).logprobs))
    assert apart.mean() < CLOSE / 3
    assert apart.max() < CLOSE
    assert np.corrcoef(scores(told), of_tokens(forward_of(PATH, prompt()).logprobs))[0, 1] > 0.999


async def test_the_likeliest_tokens_are_those_of_the_dequantised_weights(told: list[Token]) -> None:
    expected = forward_of(PATH, prompt()).logprobs
    shared = []
    for token in told[1:]:
        row = expected[token.position - 1]
        likeliest = np.argsort(-row)[:TOP].tolist()
        shared.append(len({each.id for each in token.top} & set(likeliest)) / TOP)
        assert row.max() - row[token.top[0].id] < CLOSE
        assert np.mean([abs(each.logprob - row[each.id]) for each in token.top]) < CLOSE
    assert np.mean(shared) > 0.9


async def test_scores_are_those_of_the_librarys_raw_logits(told: list[Token]) -> None:
    assert scores(told) == pytest.approx(of_tokens(bare()), abs=1e-3)
    for token in told[1:]:
        row = bare()[token.position - 1]
        assert [each.logprob for each in token.top] == pytest.approx(np.sort(row)[::-1][:TOP], abs=1e-3)


@pytest.mark.filterwarnings("ignore")  # theirs, at import
async def test_the_reference_itself_agrees_with_transformers_on_the_same_weights() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = ReferenceModel(PATH)
    theirs = _transformer(torch, transformers, reference)
    with torch.no_grad():
        found = theirs(torch.tensor([list(prompt())]), output_hidden_states=True)
    ours = forward_of(PATH, prompt())
    # The last of the hidden states is normed; every other is the stream before a layer.
    for layer, states in enumerate(found.hidden_states[1:-1]):
        assert cosines(states[0].numpy(), ours.residuals[layer]).min() > 1 - 1e-5, layer
    assert log_softmax(found.logits[0].numpy()) == pytest.approx(ours.logprobs, abs=1e-2)


def _transformer(torch: object, transformers: object, reference: ReferenceModel) -> object:
    """A LlamaForCausalLM over the dequantised weights."""
    shape = reference.shape
    config = transformers.LlamaConfig(  # type: ignore[attr-defined]
        vocab_size=model().vocabulary_size,
        hidden_size=shape.hidden,
        intermediate_size=reference.weight("blk.0.ffn_up.weight").shape[0],
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        rope_theta=shape.rope_base,
        rms_norm_eps=shape.epsilon,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).eval()  # type: ignore[attr-defined]
    weights = {
        "model.embed_tokens.weight": reference.weight("token_embd.weight"),
        "lm_head.weight": reference.weight("token_embd.weight"),
        "model.norm.weight": reference.weight("output_norm.weight"),
    }
    for layer in range(shape.layers):
        for name, source in NAMES.items():
            weights[f"model.layers.{layer}.{name}.weight"] = reference.weight(f"blk.{layer}.{source}.weight")
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads)):
            weight = reference.weight(f"blk.{layer}.attn_{name}.weight")
            weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = _halved(weight, heads)
    theirs.load_state_dict({name: torch.tensor(weight) for name, weight in weights.items()})  # type: ignore[attr-defined]
    return theirs


NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _halved(weight: Floats, heads: int) -> Floats:
    """Rows as transformers pairs them for rope: the first half of a head with its second half."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))
