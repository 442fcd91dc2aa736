"""The residual stream, and what is read out of it, against a forward pass of our own."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from reference_model import TEXT, Floats, ReferenceModel, cosines, forward_of

from ganglion.core.events import Finished, Pieces, Scored, Token, TokenEvent
from ganglion.core.request import TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, write_pack
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
    pytest.mark.skipif(embedded is None, reason="the embedded model is not installed"),
]
PATH = embedded.path if embedded is not None else Path("nowhere")
LAYERS, CONCEPTS, GENERATED = (3, 11, 20, 29), 5, 4
SAME = 0.999
"""Cosine of streams that differ by nothing but the library's rounding of activations to 8 bits."""
NEARLY = 0.998
"""The same at the worst of a thousand places: such roundings add up over layers, and not everywhere alike."""

GGML = """
const char *ggml_get_name(const void *tensor);
void *ggml_get_data(const void *tensor);
int64_t ggml_nelements(const void *tensor);
"""


class Watched:
    """The library with a plain callback that copies every `l_out-<layer>` of a batch."""

    def __init__(self) -> None:
        library = open_library()
        library.ffi.cdef(GGML, override=True)
        self.model: NativeModel = load_repacked(library, str(PATH))
        self._ffi, self._lib = library.ffi, library.lib
        self._found: dict[int, Floats] = {}
        self._callback = self._ffi.callback("ggml_backend_sched_eval_callback", self._see)
        self._context = self.model.new_context(
            cells=512,
            slots=1,
            is_unified=True,
            batch=512,
            threads=2,
            kv_type="f16",
            flash_attention=None,
            eval_callback=(self._callback, self._ffi.NULL),
        )

    def residuals(self, tokens: tuple[int, ...]) -> Floats:
        """[layers, tokens, hidden]; every row's logits are wanted, else the last layer computes only some."""
        self._found.clear()
        self._context.trim(0, 0)
        self._context.decode([(0, position, [token], True) for position, token in enumerate(tokens)])
        return np.stack([self._found[layer].reshape(len(tokens), -1) for layer in sorted(self._found)])

    def _see(self, tensor: object, is_asked: bool, _: object) -> bool:
        name: bytes = self._ffi.string(self._lib.ggml_get_name(tensor))
        if not name.startswith(b"l_out-"):
            return False
        if not is_asked:
            size_bytes = self._lib.ggml_nelements(tensor) * 4
            data = self._ffi.buffer(self._lib.ggml_get_data(tensor), size_bytes)
            self._found[int(name.removeprefix(b"l_out-"))] = np.frombuffer(data, np.float32).copy()
        return True


@cache
def watched() -> Watched:
    return Watched()


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(watched().model.tokenize(text, add_special=True, parse_special=True))


@pytest.fixture(scope="module")
def residuals() -> Floats:
    return watched().residuals(tokens_of(TEXT))


def test_the_stream_after_every_layer_is_the_one_of_the_dequantised_weights(residuals: Floats) -> None:
    expected = forward_of(PATH, tokens_of(TEXT)).residuals
    assert residuals.shape == expected.shape == (30, len(tokens_of(TEXT)), 576)
    # By position: the first token's stream is so much longer than all others that it would speak for them.
    found = cosines(residuals, expected)
    assert found.mean(axis=1).min() >= SAME
    assert found.min() >= NEARLY


def test_each_layer_makes_of_the_stream_before_it_what_the_reference_makes_of_it(residuals: Floats) -> None:
    """Fed with the library's own stream, nothing adds up over layers and a wrong one stands out."""
    model = ReferenceModel(PATH)
    stream = model.embed(tokens_of(TEXT))
    for layer, found in enumerate(residuals):
        expected = model.after(layer, stream)
        assert cosines(found, expected).min() >= SAME, layer
        assert cosines(found - stream, expected - stream).mean() >= SAME, layer
        stream = found


def random_pack(folder: Path) -> ConceptPack:
    chance = np.random.default_rng(5)
    drawn = {layer: chance.normal(size=(CONCEPTS, 576)).astype(np.float32) for layer in LAYERS}
    vectors = {layer: each / np.linalg.norm(each, axis=1, keepdims=True) for layer, each in drawn.items()}
    names = [f"direction {number}" for number in range(CONCEPTS)]
    model = PackModel(name="smollm2", architecture="llama", hidden_size=576, block_count=30)
    pack = ConceptPack(PackManifest(name="random", concepts=names, layers=list(LAYERS), model=model), vectors)
    write_pack(pack, folder / "random.safetensors")
    return pack


async def read_out(folder: Path, tokens: tuple[int, ...]) -> list[Token]:
    """The prompt's tokens and a few generated ones, in order, with their readouts."""
    settings = EngineSettings("smollm2", context=512, concepts=(str(folder / "random.safetensors"),))
    engine = LlamaEngine(read_facts(PATH), settings)
    await engine.open()
    try:
        manifest = engine.models()[0].readout
        assert manifest is not None
        assert (manifest.layers, len(manifest.concepts)) == (LAYERS, CONCEPTS)
        greedy = ResolvedSampling(temperature=0.0)
        request = TokenRequest(
            "read", tokens, GENERATED, sampling=greedy, readout=((0, None),), in_tokens=True
        )
        events: list[TokenEvent] = [event async for event in engine.tokens.run(request)]
    finally:
        await engine.close()
    assert isinstance(events[-1], Finished), events[-1]
    return list(_tokens(events))


def _tokens(events: list[TokenEvent]) -> Iterator[Token]:
    for event in events:
        match event:
            case Scored(tokens=tokens):
                yield from tokens
            case Pieces(pieces=pieces):
                for piece in pieces:
                    yield from piece.tokens
            case _:
                pass


async def test_a_readout_is_the_stream_of_its_own_position_along_each_vector(tmp_path: Path) -> None:
    pack = random_pack(tmp_path)
    prompt = tokens_of(TEXT)
    told = await read_out(tmp_path, prompt)
    assert [token.position for token in told] == list(range(len(prompt) + GENERATED))
    tokens = tuple(token.id for token in told)
    assert tokens[: len(prompt)] == prompt
    found = np.array([token.readout for token in told], np.float32).reshape(len(told), len(LAYERS), CONCEPTS)
    for streams, tolerance in (
        (watched().residuals(tokens), 1e-3),
        (forward_of(PATH, tokens).residuals, 0.05),
    ):
        for place, layer in enumerate(LAYERS):
            stream = streams[layer]
            expected = stream @ pack.vectors[layer].T
            # A random direction sees a small part of a stream: its error is judged beside the stream's length
            # over the root of its size, which is what such a direction sees on average.
            usual = np.linalg.norm(stream, axis=1, keepdims=True) / np.sqrt(stream.shape[1])
            assert (np.abs(found[:, place] - expected) / usual).mean() < tolerance, layer
