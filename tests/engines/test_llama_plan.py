"""From what an operator asks to what a worker is started with."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ganglion.core.errors import InsufficientMemory, InsufficientVideoMemory, InvalidValue, LoadFailed
from ganglion.core.model import ModelFacts, ProjectorFacts
from ganglion.engines.llama.gpu_plan import output_bytes
from ganglion.engines.llama.plan import (
    CELL_STEP,
    DEFAULT_CONTEXT,
    DEFAULT_EXTRA,
    EXACT_TOKENS,
    LARGEST_BACKGROUND,
    LARGEST_CHUNK,
    MAX_SLOTS,
    PRIVATE_SLOTS,
    EnginePlan,
    plan,
    plan_second,
)
from ganglion.engines.settings import EngineSettings

GIBIBYTE = 2**30
FACTS = ModelFacts(
    path="/models/small.gguf",
    size_bytes=100 * 2**20,
    modified_s=0,
    architecture="llama",
    name="Small",
    context_length=32768,
    block_count=30,
    kv_values_per_token=11520,
    vocabulary_size=49152,
)


def planned(facts: ModelFacts = FACTS, free_bytes: int = 1024 * GIBIBYTE, **settings: object) -> EnginePlan:
    asked = structs.replace(EngineSettings("m"), **settings)
    return plan(asked, facts, cores=4, free_bytes=free_bytes)


def test_nothing_asked_gives_a_bounded_context_private_slots_beside_it_and_all_cores():
    found = planned()
    assert found.context == DEFAULT_CONTEXT
    assert found.kv_tokens == DEFAULT_CONTEXT + DEFAULT_EXTRA
    assert [each.cells for each in found.kv_contexts[:-1]] == [*PRIVATE_SLOTS, EXACT_TOKENS]
    assert found.threads == 4


def test_a_model_trained_on_less_gets_the_context_it_was_trained_on():
    assert planned(replace(FACTS, context_length=2048)).context == 2048


@given(st.integers(1, 40_000), st.integers(0, 80_000), st.integers(1, 300), st.booleans())
def test_any_pool_holds_what_was_asked_and_one_whole_context(context, extra, parallel, is_deterministic):
    kv_tokens = context + extra
    found = planned(
        context=context, kv_tokens=kv_tokens, parallel=parallel, is_deterministic=is_deterministic
    )
    shared = found.kv_contexts[-1]
    assert shared.is_shared
    assert not any(each.is_shared for each in found.kv_contexts[:-1])
    assert shared.cells >= context
    assert all(each.slots >= 1 and each.cells % CELL_STEP == 0 for each in found.kv_contexts)
    assert all(each.slots <= MAX_SLOTS for each in found.kv_contexts)
    assert 1 <= found.parallel <= parallel
    assert found.parallel <= sum(each.slots for each in found.kv_contexts)
    if not is_deterministic:
        assert abs(found.kv_tokens - kv_tokens) < 2 * CELL_STEP


@given(st.integers(1, 9000), st.integers(0, 60_000), st.integers(1, 64))
def test_deterministic_lanes_give_every_sequence_a_whole_context_of_its_own(context, extra, parallel):
    found = planned(context=context, kv_tokens=context + extra, parallel=parallel, is_deterministic=True)
    assert all(each.cells == found.kv_contexts[-1].cells >= context for each in found.kv_contexts)
    assert found.kv_contexts[-1].slots == 1
    assert found.parallel == sum(each.slots for each in found.kv_contexts)
    assert found.kv_tokens <= max(context + extra, found.kv_contexts[-1].cells)


@pytest.mark.parametrize(("context", "kv_tokens"), [(512, 512), (512, 1024), (700, 5000), (4096, 4096)])
def test_a_pool_too_small_to_divide_is_shared_by_all(context, kv_tokens):
    exact, shared = planned(context=context, kv_tokens=kv_tokens, parallel=8).kv_contexts
    assert (shared.is_shared, shared.slots) == (True, 16), "as many idle ones beside those that run"
    assert 0 <= shared.cells - kv_tokens < CELL_STEP
    assert (exact.is_exact, exact.is_shared) == (True, False), "but prompts that are scored"


def test_a_pool_smaller_than_the_context_is_an_error_that_says_what_to_raise():
    with pytest.raises(InvalidValue, match="cannot hold one sequence of 4096") as caught:
        planned(context=4096, kv_tokens=4095)
    assert caught.value.param == "kv_tokens"
    assert "--kv-tokens to at least 4096" in str(caught.value.hint)


def test_what_does_not_fit_says_how_much_is_free_and_how_much_is_needed():
    needed = planned().required_bytes
    assert planned(free_bytes=needed).required_bytes == needed
    with pytest.raises(InsufficientMemory) as caught:
        planned(free_bytes=needed - 1)
    assert caught.value.extras == {"free_mb": (needed - 1) >> 20, "required_mb": needed >> 20}
    assert caught.value.hint


def test_a_coarser_cache_needs_less_memory():
    sizes = [planned(kv_type=kind).required_bytes for kind in ("f16", "q8_0", "q4_0")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_deterministic_sequences_share_no_kv_with_an_earlier_life():
    assert planned(kv_folder="/kv").kv_folder == "/kv"
    assert planned(kv_folder="/kv", is_deterministic=True).kv_folder is None


def test_a_file_that_does_not_say_its_context_is_refused():
    with pytest.raises(InvalidValue, match="how long its context is"):
        planned(replace(FACTS, context_length=0))


def test_layers_on_an_accelerator_take_their_memory_there_and_not_here():
    pool = DEFAULT_CONTEXT + DEFAULT_EXTRA
    asked = structs.replace(EngineSettings("m"), gpu_layers=99, kv_tokens=pool)
    here = plan(asked, FACTS, cores=4, free_bytes=GIBIBYTE, free_video_bytes=None)
    there = plan(asked, FACTS, cores=4, free_bytes=GIBIBYTE, free_video_bytes=GIBIBYTE)
    half = plan(
        structs.replace(asked, gpu_layers=15), FACTS, cores=4, free_bytes=GIBIBYTE, free_video_bytes=GIBIBYTE
    )
    outputs = output_bytes(FACTS, there.kv_contexts)
    assert outputs > 0
    assert (here.video_bytes, here.required_bytes) == (0, there.video_bytes + there.required_bytes - outputs)
    assert there.video_bytes > FACTS.size_bytes
    assert half.video_bytes == pytest.approx(there.video_bytes * 15 / 31, abs=2)
    with pytest.raises(InsufficientVideoMemory) as raised:
        plan(asked, FACTS, cores=4, free_bytes=GIBIBYTE, free_video_bytes=FACTS.size_bytes)
    assert raised.value.code == "insufficient_vram"
    assert raised.value.extras["free_mb"] == 100


def test_batches_in_the_background_are_larger_where_the_processor_computes_them():
    here, there = planned(), planned(gpu_layers=99)
    assert [here.batch(number) for number in range(len(here.kv_contexts))] == [LARGEST_CHUNK] * 3 + [
        LARGEST_BACKGROUND
    ]
    assert {there.batch(number) for number in range(len(there.kv_contexts))} == {LARGEST_CHUNK}
    assert (here.largest_background, there.largest_background) == (LARGEST_BACKGROUND, LARGEST_CHUNK)


RECASTABLE = replace(FACTS, quantisation="Q4_1")


def test_slow_weights_of_a_known_architecture_are_recast():
    assert planned(RECASTABLE).is_repacked


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        pytest.param({"quantisation": "Q4_K_M"}, {}, id="a form with kernels of its own"),
        pytest.param({"architecture": "mamba"}, {}, id="a graph that may not apply adapters"),
        pytest.param({"size_bytes": 2 * GIBIBYTE}, {}, id="too large to gain by it"),
        pytest.param({}, {"gpu_layers": 10}, id="on a GPU"),
        pytest.param({}, {"is_deterministic": True}, id="deterministic"),
        pytest.param({}, {"is_recast": False}, id="not wanted"),
    ],
)
def test_all_other_weights_stay_as_they_are(facts, settings):
    assert not planned(replace(RECASTABLE, **facts), **settings).is_repacked


def test_a_model_that_only_just_fits_is_not_held_twice_while_it_is_loaded():
    required = planned(RECASTABLE).required_bytes
    assert not planned(RECASTABLE, free_bytes=required + RECASTABLE.size_bytes - 1).is_repacked
    assert planned(RECASTABLE, free_bytes=required + RECASTABLE.size_bytes).is_repacked


def test_a_second_worker_computes_as_the_first_and_shares_what_is_mapped():
    asked = EngineSettings("m", kv_folder="/somewhere")
    first = plan(asked, FACTS, cores=4, free_bytes=GIBIBYTE)
    second = plan_second(asked, FACTS, first, cores=4, free_bytes=first.required_bytes - FACTS.size_bytes)
    alike = ("path", "context", "threads", "kv_type", "is_deterministic", "is_repacked")
    assert [getattr(second, name) for name in alike] == [getattr(first, name) for name in alike]
    assert [each.cells for each in second.kv_contexts[:-1]] == [each.cells for each in first.kv_contexts[:-1]]
    assert second.kv_tokens < first.kv_tokens
    assert second.required_bytes < first.required_bytes - FACTS.size_bytes
    assert (second.parallel, second.kv_folder) == (1, None)


def test_a_second_worker_that_has_no_room_is_refused():
    asked = EngineSettings("m")
    first = plan(asked, FACTS, cores=4, free_bytes=GIBIBYTE)
    with pytest.raises(InsufficientMemory):
        plan_second(asked, FACTS, first, cores=4, free_bytes=100 * 2**20)
    recast = replace(first, is_repacked=True)
    needed = plan_second(asked, FACTS, recast, cores=4, free_bytes=GIBIBYTE).required_bytes
    assert needed > FACTS.size_bytes, "recast weights are each worker's own"
    with pytest.raises(InsufficientMemory):
        plan_second(asked, FACTS, replace(first, gpu_layers=9), cores=4, free_bytes=GIBIBYTE)


def test_a_projector_is_counted_and_one_that_cannot_be_used_is_refused():
    eyes = ProjectorFacts("/eyes.gguf", 300 * 2**20, "mlp", sees=True, hears=False)
    blind, seeing = planned(FACTS), planned(replace(FACTS, projector=eyes))
    assert (blind.projector, seeing.projector) == (None, "/eyes.gguf")
    assert seeing.required_bytes >= blind.required_bytes + eyes.size_bytes
    with pytest.raises(LoadFailed, match="hunyuanvl"):
        planned(replace(FACTS, projector=replace(eyes, kind="hunyuanvl")))
