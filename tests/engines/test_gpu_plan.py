"""What a GPU is given: layers, pool and slots, from a file's layers and from what is free."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ganglion.core.errors import InsufficientVideoMemory, InvalidValue
from ganglion.core.model import ModelFacts
from ganglion.engines.llama.gpu_plan import BATCH, MICRO_BATCH, PRIVATE_CELLS, compute_bytes, weight_bytes
from ganglion.engines.llama.plan import CELL_STEP, EnginePlan, plan
from ganglion.engines.resources import usable_video_bytes
from ganglion.engines.settings import EngineSettings

GIBIBYTE = 2**30
BLOCK, ENDS = 416 * 2**20, 2 * 2**30
FACTS = ModelFacts(
    path="/models/eight.gguf",
    size_bytes=32 * BLOCK + ENDS,
    modified_s=0,
    architecture="llama",
    name="Eight",
    context_length=131072,
    block_count=32,
    kv_values_per_token=32 * 2 * 1024,
    vocabulary_size=128256,
    block_bytes=(BLOCK,) * 32,
)


def planned(free: int | None, facts: ModelFacts = FACTS, **settings: object) -> EnginePlan:
    asked = structs.replace(EngineSettings("m"), **settings)
    return plan(asked, facts, cores=4, free_bytes=1024 * GIBIBYTE, free_video_bytes=free)


def test_all_layers_go_there_by_default_and_all_who_run_have_slots_of_their_own():
    found = planned(139 * GIBIBYTE)
    assert (found.gpu_layers, found.layer_count) == (33, 33)
    assert found.samples_in_graph
    exact, private, shared = found.kv_contexts
    assert exact.is_exact
    assert (private.slots, private.cells) == (64, PRIVATE_CELLS)
    assert shared.cells >= found.context
    numbers = range(3)
    assert {found.batch(number) for number in numbers} == {BATCH}
    assert {found.micro_batch(number) for number in numbers} == {MICRO_BATCH}
    assert found.step_s < 0.06


def test_without_an_accelerator_nothing_is_as_on_one():
    found = planned(None)
    assert (found.gpu_layers, found.is_accelerated, found.samples_in_graph, found.video_bytes) == (
        *(0, False, False),
        0,
    )
    assert [found.micro_batch(number) for number in range(len(found.kv_contexts))] == [
        found.batch(number) for number in range(len(found.kv_contexts))
    ]
    assert found == planned(139 * GIBIBYTE, gpu_layers=0)


@given(st.integers(0, 40 * GIBIBYTE), st.integers(1, 256))
def test_as_many_layers_as_fit_and_never_more_than_is_free(free, parallel):
    found = planned(free, parallel=parallel)
    held = found.video_bytes + compute_bytes(FACTS) if found.gpu_layers else 0
    assert held <= free
    if 0 < found.gpu_layers < found.layer_count:
        with pytest.raises(InsufficientVideoMemory):
            planned(int(held), parallel=parallel, gpu_layers=found.gpu_layers + 1)
    assert found.samples_in_graph is (found.gpu_layers == found.layer_count)


def test_layers_that_were_asked_for_are_refused_where_they_do_not_fit():
    with pytest.raises(InsufficientVideoMemory) as raised:
        planned(8 * GIBIBYTE, gpu_layers=99)
    extras = raised.value.extras
    assert extras["free_mb"] == 8 * 1024
    assert int(str(extras["required_mb"])) > FACTS.size_bytes >> 20
    assert "--gpu-layers" in (raised.value.hint or "")


def test_the_last_layers_go_first_and_weigh_what_the_file_says():
    uneven = replace(FACTS, block_bytes=tuple(range(1, 33)), size_bytes=1000)
    ends = 1000 - sum(range(1, 33))
    assert [weight_bytes(uneven, layers) for layers in (0, 1, 2, 33, 99)] == [0, ends, ends + 32, 1000, 1000]


@given(st.integers(1, 300), st.integers(1, 40_000), st.integers(0, 600_000))
def test_a_pool_that_was_asked_for_is_kept_to(parallel, context, extra):
    found = planned(500 * GIBIBYTE, parallel=parallel, context=context, kv_tokens=context + extra)
    assert found.kv_contexts[-1].is_shared
    assert found.kv_contexts[-1].cells >= context
    assert all(shape.slots >= 1 and shape.cells % CELL_STEP == 0 for shape in found.kv_contexts)
    assert abs(found.kv_tokens - (context + extra)) < 2 * CELL_STEP
    assert 1 <= found.parallel <= parallel


def test_a_pool_shrinks_to_what_is_free_but_holds_one_whole_context():
    roomy, tight = planned(139 * GIBIBYTE), planned(20 * GIBIBYTE)
    assert tight.gpu_layers == roomy.gpu_layers
    assert roomy.kv_tokens > tight.kv_tokens >= tight.context


@pytest.mark.parametrize(
    ("settings", "param"),
    [({"gpu_split": "0,0"}, "gpu_split"), ({"gpu_split": "3,1", "gpu_main": 1}, "gpu_main")],
)
def test_a_split_that_makes_no_sense_is_refused_by_name(settings, param):
    with pytest.raises(InvalidValue) as raised:
        planned(None, **settings)
    assert raised.value.param == param


def test_shares_reach_the_worker_as_numbers():
    assert planned(139 * GIBIBYTE, gpu_split="3,1").gpu_split == (3.0, 1.0)


@pytest.mark.parametrize(
    ("free", "split", "main", "usable"),
    [
        ((10, 20), (), None, 30),
        ((10, 20), (3, 1), None, 13),
        ((10, 20), (0, 1), None, 20),
        ((10, 20), (1, 1, 1), None, 0),
        ((10, 20), (), 1, 20),
        ((10, 20), (), 2, 0),
        ((), (), None, 0),
    ],
)
def test_what_several_devices_have_for_one_model(free, split, main, usable):
    assert usable_video_bytes(free, split, main) == usable
