"""Copies between the slots of one context that the device makes with its next batch."""

from collections.abc import Iterator

import numpy as np
import pytest
from attention_kinds import write_model

from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model

pytestmark = pytest.mark.model
PROMPT, OTHER = list(range(3, 43)), list(range(100, 120))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeModel]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_model(path, "full")
    loaded = load_model(open_library(), str(path), gpu_layers=0)
    yield loaded
    loaded.free()


@pytest.fixture
def context(model: NativeModel) -> Iterator[NativeContext]:
    opened = model.new_context(
        cells=4 * 256, slots=4, is_unified=False, batch=64, threads=1, kv_type="f16", flash_attention=False
    )
    yield opened
    opened.free()


def after(context: NativeContext, slot: int, tokens: list[int], start: int) -> np.ndarray:
    """The logits behind these tokens, with what the slot holds before them."""
    (row,) = context.decode([(slot, start, tokens, True)])
    return context.logits(row).copy()


@pytest.fixture
def expected(context: NativeContext) -> np.ndarray:
    context.decode([(3, 0, PROMPT[:30], False)])
    found = after(context, 3, [7], 30)
    context.trim(3, 0)
    return found


def test_a_copy_holds_the_first_cells_and_the_source_all(context, expected):
    context.decode([(0, 0, PROMPT, False)])
    context.copy(0, 1, 30)
    assert np.array_equal(after(context, 1, [7], 30), expected)
    assert not np.array_equal(after(context, 0, [7], len(PROMPT)), expected)


def test_a_source_that_is_emptied_and_loaded_at_once_was_copied_before(context, expected):
    context.decode([(0, 0, PROMPT, False), (2, 0, OTHER, False)])
    other = context.save(2)
    context.copy(0, 1, 30)
    context.trim(0, 0)
    context.load(0, other)
    assert np.array_equal(after(context, 1, [7], 30), expected)


def test_what_was_copied_can_be_saved_and_carried_on(context, expected):
    context.decode([(0, 0, PROMPT, False)])
    context.copy(0, 1, 35)
    context.copy(1, 2, 33)
    context.trim(2, 30)
    context.load(3, context.save(2))
    assert np.array_equal(after(context, 3, [7], 30), expected)
    assert np.array_equal(after(context, 2, [7], 30), expected)


def test_a_target_that_is_emptied_before_the_copy_was_made_takes_other_cells(context):
    context.decode([(0, 0, PROMPT, False), (2, 0, OTHER, False)])
    other = context.save(2)
    context.copy(0, 1, 30)
    context.trim(1, 0)
    context.load(1, other)
    assert np.array_equal(after(context, 1, [7], len(OTHER)), after(context, 2, [7], len(OTHER)))
