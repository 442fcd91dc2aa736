"""The binding: its guards, and KV that moves between contexts of any shape."""

from pathlib import Path

import numpy as np
import pytest

from ganglion.core.errors import EngineUnavailable, LoadFailed
from ganglion.engines.llama.native import library
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.library import (
    SENTINELS,
    Library,
    library_path,
    missing_cpu_flags,
    open_library,
)
from ganglion.engines.llama.native.model import NativeModel, load_model
from support.embedded_model import embedded_model

pytestmark = pytest.mark.model

TOKENS = list(range(1000, 1040))


@pytest.fixture(scope="module")
def model() -> NativeModel:
    found = embedded_model()
    return load_model(open_library(), str(found.path), gpu_layers=0)


def context(model: NativeModel, slots: int, cells: int, *, is_unified: bool) -> NativeContext:
    return model.new_context(
        cells=cells,
        slots=slots,
        is_unified=is_unified,
        batch=64,
        threads=2,
        kv_type="f16",
        flash_attention=False,
    )


def next_logits(subject: NativeContext, slot: int) -> np.ndarray:
    (row,) = subject.decode([(slot, len(TOKENS), [7], True)])
    assert row is not None
    return subject.logits(row).copy()


@pytest.mark.parametrize("source", [(8, 2048, False), (3, 768, False), (5, 512, True)])
@pytest.mark.parametrize("target", [(8, 2048, False), (2, 1024, False), (5, 512, True)])
def test_saved_kv_loads_into_a_context_of_any_shape_with_the_same_next_logits(model, source, target):
    one = context(model, *source[:2], is_unified=source[2])
    other = context(model, *target[:2], is_unified=target[2])
    try:
        one.decode([(2, 0, TOKENS, True)])
        state = one.save(2)
        other.load(1, state)
        other.load(0, state)
        expected = next_logits(one, 2)
        assert np.array_equal(next_logits(other, 1), expected)
        assert np.array_equal(next_logits(other, 0), expected)
    finally:
        one.free()
        other.free()


def test_a_state_that_does_not_fit_leaves_the_slot_empty(model):
    large, small = context(model, 1, 1024, is_unified=True), context(model, 4, 1024, is_unified=False)
    try:
        for start in range(0, 320, 64):
            large.decode([(0, start, list(range(64)), False)])
        state = large.save(0)
        assert not small.try_load(0, state)
        assert small.decode([(0, 0, TOKENS, True)]) == [39]
    finally:
        large.free()
        small.free()


def test_pieces_of_a_text_are_its_bytes(model):
    text = "naïve — 日本語 🎈"
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(model.piece(token) for token in tokens).decode() == text


def test_a_file_that_is_no_model_is_a_typed_error_with_a_hint(model, tmp_path):
    path = tmp_path / "junk.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LoadFailed) as caught:
        load_model(model.library, str(path), gpu_layers=0)
    assert caught.value.hint


def test_a_library_without_the_symbols_is_refused(tmp_path):
    other = next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    with pytest.raises(EngineUnavailable, match="lacks"):
        Library(other)


def test_a_path_that_is_no_library_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("GANGLION_LIBLLAMA", str(tmp_path / "missing.so"))
    with pytest.raises(EngineUnavailable, match="cannot be loaded"):
        open_library()


def test_another_struct_layout_is_refused(monkeypatch):
    monkeypatch.setitem(SENTINELS, "op_offload", 0)
    with pytest.raises(EngineUnavailable, match="op_offload is 1"):
        Library(library_path())


def test_a_cpu_without_the_needed_instructions_is_named(monkeypatch):
    assert missing_cpu_flags("flags : sse2 fma f16c bmi2 avx2") == ()
    assert missing_cpu_flags("flags : sse2 fma") == ("avx2", "f16c", "bmi2")
    monkeypatch.setattr(library, "CPU_FLAGS", ("no-such-flag",))
    with pytest.raises(EngineUnavailable, match="no-such-flag") as caught:
        open_library()
    assert "GANGLION_LIBLLAMA" in str(caught.value.hint)
