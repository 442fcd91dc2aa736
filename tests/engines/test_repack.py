"""Q4_1 weights as Q4_0 and an adapter: the same numbers, and as near to them as the library's own kernels."""

import errno
import struct
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference_model import TEXT, forward_of, log_softmax

from ganglion.core.errors import LoadFailed
from ganglion.engines.llama.native import repack
from ganglion.engines.llama.native.library import Library, open_library
from ganglion.engines.llama.native.model import NativeModel, load_model
from ganglion.engines.llama.native.repack import (
    BLOCK,
    Q4_1_BLOCK,
    block_sums,
    load_repacked,
    split_offsets,
    split_q4_1,
)
from ganglion.engines.llama.plan import REPACK_ARCHITECTURES
from ganglion.registry.hub.embedded import SMOLLM2, find

embedded = find(SMOLLM2, Path("nowhere"))
PATH = embedded.path if embedded is not None else Path("nowhere")
on_the_model = [
    pytest.mark.model,
    pytest.mark.skipif(embedded is None, reason="the embedded model is not installed"),
]
Q4_0, Q4_1, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0
halves = st.floats(-60.0, 60.0, width=16)
Logprobs = npt.NDArray[np.float64]


blocks = st.integers(1, 40).flatmap(
    lambda count: st.tuples(
        arrays(np.float16, count, elements=halves),
        arrays(np.float16, count, elements=halves),
        arrays(np.uint8, (count, BLOCK // 2)),
    )
)


@given(blocks)
def test_all_parts_together_are_the_weights_as_they_were(parts):
    row = np.empty(len(parts[0]), Q4_1_BLOCK)
    row["scale"], row["least"], row["quants"] = parts
    centred, offsets = split_q4_1(row.tobytes())
    before = dequantised(row.tobytes(), Q4_1).reshape(-1, BLOCK)
    added = dequantised(split_offsets(offsets.reshape(1, -1)), Q8_0).reshape(2, -1).sum(axis=0)[: len(row)]
    after = dequantised(centred, Q4_0).reshape(-1, BLOCK) + added[:, np.newaxis]
    # Of the largest offset: below 2^-15 until the scales themselves, which are of 16 bits, become too small.
    assert np.abs(after - before).max() <= max(np.abs(offsets).max() * 2.0**-14, 2.0**-17)


def test_the_first_matrix_of_the_adapter_sums_each_block_twice():
    matrix = dequantised(block_sums(3 * BLOCK), Q4_0).reshape(2, BLOCK, 3 * BLOCK)
    row = np.arange(3 * BLOCK, dtype=np.float32)
    expected = [*row.reshape(3, BLOCK).sum(axis=1).tolist(), *[0.0] * (BLOCK - 3)]
    assert (matrix @ row).tolist() == [expected, expected]


def dequantised(data: bytes, kind: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    return dequantize(np.frombuffer(data, np.uint8), kind)


@cache
def library() -> Library:
    return open_library()


def logprobs(model: NativeModel) -> tuple[tuple[int, ...], Logprobs]:
    """What a model says after each token of the text, without a neighbour or a cache; frees the model."""
    context = model.new_context(
        cells=512, slots=1, is_unified=True, batch=512, threads=2, kv_type="f16", flash_attention=False
    )
    tokens = model.tokenize(TEXT, add_special=True, parse_special=True)
    rows = context.decode([(0, position, [token], True) for position, token in enumerate(tokens)])
    found = log_softmax(np.stack([context.logits(row) for row in rows if row is not None]))
    context.free()
    model.free()
    return tuple(tokens), found


class TestOnTheModel:
    pytestmark = on_the_model

    def test_a_recast_model_is_as_near_to_the_files_weights_as_the_librarys_own_kernels(self) -> None:
        tokens, recast_ones = logprobs(load_repacked(library(), str(PATH)))
        _, as_they_are = logprobs(load_model(library(), str(PATH), gpu_layers=0))
        truth = forward_of(PATH, tokens).logprobs

        def distance(found: Logprobs) -> float:
            return float((np.exp(truth) * (truth - found)).sum(axis=1).mean())

        assert not np.array_equal(recast_ones, as_they_are)
        assert distance(recast_ones) < 1.5 * distance(as_they_are)
        assert distance(recast_ones) < 0.01  # without the offsets it would be 0.4

    @pytest.mark.parametrize("reason", ["no large matrices of that form", "no files in memory"])
    def test_what_cannot_be_recast_is_loaded_as_it_is(self, monkeypatch, reason: str) -> None:
        if reason == "no files in memory":
            monkeypatch.setattr(repack.os, "memfd_create", _refuse)
        else:
            monkeypatch.setattr(repack, "LEAST_WEIGHTS", 1 << 40)
        assert np.array_equal(
            logprobs(load_repacked(library(), str(PATH)))[1],
            logprobs(load_model(library(), str(PATH), gpu_layers=0))[1],
        )

    def test_a_row_gives_the_same_alone_and_beside_others(self) -> None:
        model = load_repacked(library(), str(PATH))
        tokens = model.tokenize(TEXT, add_special=True, parse_special=True)
        context = model.new_context(
            cells=512, slots=1, is_unified=True, batch=512, threads=2, kv_type="f16", flash_attention=None
        )
        found = []
        for at_once in (1, 2, 5, len(tokens)):
            context.trim(0, 0)
            for start in range(0, len(tokens), at_once):
                (row,) = context.decode([(0, start, tokens[start : start + at_once], True)])
            assert row is not None
            found.append(context.logits(row).copy())
        context.free()
        model.free()
        assert all(np.array_equal(each, found[0]) for each in found)

    def test_a_model_in_parts_is_loaded_as_it_is(self, tmp_path: Path, monkeypatch) -> None:
        path = tmp_path / "part.gguf"
        path.write_bytes(with_key(PATH.read_bytes(), "split.count", 1))
        monkeypatch.setattr(repack, "_write_model", None)  # which would be called otherwise
        load_repacked(library(), str(path)).free()

    def test_a_file_that_is_cut_short_is_a_typed_error_that_names_it_and_leaves_nothing_open(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "short.gguf"
        path.write_bytes(PATH.read_bytes()[: 40 * 2**20])
        before = open_files()
        with pytest.raises(LoadFailed, match=r"short\.gguf"):
            load_repacked(library(), str(path))
        assert open_files() == before


@pytest.mark.parametrize("architecture", sorted(REPACK_ARCHITECTURES))
def test_every_architecture_adds_the_adapter_wherever_it_multiplies(architecture: str, tmp_path: Path):
    path = str(tmp_path / "tiny.gguf")
    write_tiny(path, architecture)
    found = tiny_logits(load_repacked(library(), path))
    expected = tiny_logits(load_model(library(), path, gpu_layers=0))
    assert not np.array_equal(found, expected)
    # Activations are rounded to 8 bits, which makes 0.012; one matrix without its offsets makes 0.14 or more.
    apart = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(apart) < 0.04


def tiny_logits(model: NativeModel) -> npt.NDArray[np.float32]:
    """Of forty tokens, whatever they mean; frees the model."""
    context = model.new_context(
        cells=256, slots=1, is_unified=True, batch=64, threads=2, kv_type="f16", flash_attention=False
    )
    rows = context.decode([(0, position, [position], True) for position in range(40)])
    found = np.stack([context.logits(row) for row in rows if row is not None])
    context.free()
    model.free()
    return found


def write_tiny(path: str, architecture: str) -> None:
    """Two layers of random weights, all of whose matrices are large enough to be recast."""
    width, inner, words, heads = 512, 1024, 64, 8
    random = np.random.default_rng(1)
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("no_vocab")

    def add_matrix(name: str, rows: int, columns: int) -> None:
        means = np.repeat(random.normal(size=(rows, columns // BLOCK)), BLOCK, axis=1)
        values = 0.03 * (random.normal(size=(rows, columns)) + means)
        writer.add_tensor(name, quantize(values.astype(np.float32), Q4_1), raw_dtype=Q4_1)

    def add_values(name: str, values: npt.NDArray[np.float64]) -> None:
        writer.add_tensor(name, values.astype(np.float32))

    add_values("token_embd.weight", random.normal(size=(words, width)))
    add_values("output.weight", 0.05 * random.normal(size=(words, width)))
    add_values("output_norm.weight", np.ones(width))
    for layer in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            add_values(f"blk.{layer}.{norm}.weight", np.ones(width))
        for name in ("attn_q", "attn_k", "attn_v"):
            add_matrix(f"blk.{layer}.{name}.weight", width, width)
            add_values(f"blk.{layer}.{name}.bias", np.zeros(width))
            if architecture == "qwen3" and name != "attn_v":
                add_values(f"blk.{layer}.{name}_norm.weight", np.ones(width // heads))
        add_matrix(f"blk.{layer}.attn_output.weight", width, width)
        add_matrix(f"blk.{layer}.ffn_up.weight", inner, width)
        add_matrix(f"blk.{layer}.ffn_gate.weight", inner, width)
        add_matrix(f"blk.{layer}.ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _refuse(name: str) -> int:
    raise OSError(errno.ENOSYS, name)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def with_key(file: bytes, key: str, number: int) -> bytes:
    """A GGUF file with one more number in its metadata, and a second key that keeps the weights aligned."""
    added = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IH", 2, number)
    padding = b"p" * (-(len(added) + 8 + 3 + 4 + 8) % 32)
    added += struct.pack("<Q3sIQ", 3, b"pad", 8, len(padding)) + padding
    (keys,) = struct.unpack_from("<Q", file, 16)
    return file[:16] + struct.pack("<Q", keys + 2) + added + file[24:]
