"""Reading the residual stream: the right rows of the right layers, and nobody asked in vain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, merge_packs
from ganglion.engines.llama.concepts.capture import Capture, parts_of
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model
from support.embedded_model import embedded_model

pytestmark = pytest.mark.model
LAYERS = [7, 29]
CLOSE = 0.1
"""Of a row's length: few rows are computed by other kernels than many, and differ by some hundredths."""


def random_pack() -> ConceptPack:
    chance = np.random.default_rng(5)
    vectors = {}
    for layer in LAYERS:
        drawn = chance.normal(size=(3, 576))
        vectors[layer] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return ConceptPack(
        PackManifest("random", ["a", "b", "c"], LAYERS, PackModel("smollm2", "llama", 576, 30)), vectors
    )


@pytest.fixture(scope="module")
def model() -> NativeModel:
    found = embedded_model()
    return load_model(open_library(), str(found.path), gpu_layers=0)


def captured(
    model: NativeModel, *, is_native: bool = True, is_unified: bool = False
) -> tuple[Capture, NativeContext]:
    book = merge_packs([random_pack()])
    assert book is not None
    capture = Capture(model, book, batch=256, is_native=is_native)
    context = model.new_context(
        cells=2048,
        slots=8,
        is_unified=is_unified,
        batch=256,
        threads=1,
        kv_type="f16",
        flash_attention=False,
        eval_callback=capture.filter.hook,
    )
    capture.learn(context)
    return capture, context


RUNS = [(3, 0, list(range(100, 140)), True), (1, 0, list(range(300, 330)), True), (4, 0, [7] * 17, False)]


def test_native_code_and_python_let_the_same_through(model: NativeModel) -> None:
    values = []
    for is_native in (True, False):
        capture, context = captured(model, is_native=is_native)
        assert capture.filter.is_native == is_native
        capture.decode(context, RUNS, ((0, 87),), ((0, 87),), "consecutive")
        values.append(capture.values(0, 87).copy())
        context.free()
    assert np.array_equal(*values)


def test_nobody_is_asked_while_nobody_reads(model: NativeModel) -> None:
    capture, context = captured(model)
    before = capture.filter.python_calls
    capture.decode(context, RUNS, (), (), "consecutive")
    assert capture.filter.python_calls == before
    for slot, _, _, _ in RUNS:
        context.trim(slot, 0)
    capture.decode(context, RUNS[:1], (), ((39, 40),), "consecutive")
    assert 0 < capture.filter.python_calls - before < 100, "of a thousand tensors, the layers alone"
    context.free()


@pytest.mark.parametrize("is_unified", [True, False])
def test_rows_are_found_however_the_library_cuts_a_batch(model: NativeModel, is_unified: bool) -> None:
    capture, context = captured(model, is_unified=is_unified)
    split = "whole" if is_unified else "consecutive"
    together = {}
    capture.decode(context, RUNS, ((0, 87),), ((5, 30), (35, 87)), split)
    row = 0
    for slot, _, tokens, _ in RUNS:
        together[slot] = capture.values(row, len(tokens)).copy()
        context.trim(slot, 0)
        row += len(tokens)
    for run_alone in RUNS:
        slot, count = run_alone[0], len(run_alone[2])
        capture.decode(context, [run_alone], ((0, count),), ((0, count),), split)
        alone = capture.values(0, count)
        places = [place for place in range(count) if slot != 3 or place in {*range(5, 30), *range(35, 40)}]
        difference = np.linalg.norm((together[slot] - alone)[places], axis=(1, 2))
        assert (difference / np.linalg.norm(alone[places], axis=(1, 2)) < CLOSE).all()
    context.free()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 20)), max_size=8, unique_by=lambda run: run[0]))
def test_every_row_is_in_one_part_and_a_part_holds_as_many_of_each_run(runs: list[tuple[int, int]]) -> None:
    owners = [slot for slot, count in runs for _ in range(count)]
    for split in ("whole", "even", "consecutive"):
        parts = parts_of(runs, split)
        assert sorted(row for part in parts for row in part) == list(range(len(owners)))
        if split == "whole":
            continue
        for part in parts:
            slots = [owners[row] for row in part]
            order = list(dict.fromkeys(slots))
            assert len({slots.count(slot) for slot in order}) == 1
            assert split == "even" or order == list(range(order[0], order[0] + len(order)))
