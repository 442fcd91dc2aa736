"""Tokens drawn inside the graph: the same as on the host when greedy, and by the same chances when not.

The library runs the same graph on processors, so all but the speed is tried here.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from attention_kinds import write_model

from ganglion.core.sampling import ResolvedSampling, Samplers
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.graph_chain import GraphSamplers, GraphShape, graph_shape, is_number
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model
from ganglion.engines.llama.worker.graph_sampling import GraphDraw, GraphSampling
from ganglion.scheduler.slots import Slot

pytestmark = pytest.mark.model
SLOTS, CELLS = 8, 256
PROMPT = [5, 9, 60, 61]
PLAIN = {
    "temperature": 0.8,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": None,
    "logit_bias": (),
}


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
        cells=SLOTS * CELLS,
        slots=SLOTS,
        is_unified=False,
        batch=64,
        threads=1,
        kv_type="f16",
        flash_attention=False,
    )
    yield opened
    opened.free()


def raw_row(context: NativeContext, slot: int = 0) -> np.ndarray:
    """The logits behind the prompt, as the host sees them."""
    (row,) = context.decode([(slot, 0, PROMPT, True)])
    logits = context.logits(row).copy()
    context.trim(slot, 0)
    return logits


def chances(logits: np.ndarray, shape: GraphShape) -> np.ndarray:
    """What each token's chance is, by the definition of the filters."""
    logits = logits.astype(np.float64)
    for token, bias in shape.bias:
        logits[token] += bias
    order = np.argsort(-logits, kind="stable")
    kept = order[: shape.top_k] if shape.top_k else order
    weights = np.exp(logits[kept] - logits[kept[0]])
    if shape.top_p < 1.0:
        before = np.cumsum(weights / weights.sum()) - weights / weights.sum()
        kept, weights = kept[before < shape.top_p], weights[before < shape.top_p]
    if shape.min_p > 0.0:
        kept, weights = kept[weights >= shape.min_p], weights[weights >= shape.min_p]
    weights = weights ** (1.0 / shape.temperature)
    found = np.zeros(len(logits))
    found[kept] = weights / weights.sum()
    return found


def drawn(context: NativeContext, model: NativeModel, shape: GraphShape, rounds: int) -> Counter[int]:
    """Tokens drawn from one and the same row, each slot with a seed of its own in each round."""
    graph = GraphSampling(model)
    counts: Counter[int] = Counter()
    for number in range(rounds):
        draws = [GraphDraw(shape, 1000 * number + slot) for slot in range(SLOTS)]
        for slot, draw in enumerate(draws):
            graph.prepare(context, Slot(0, slot), draw)
            assert draw.is_in_graph
        rows = context.decode([(slot, 0, PROMPT, True) for slot in range(SLOTS)])
        counts.update(context.drawn(row)[0] for row in rows)
        for slot, draw in enumerate(draws):
            context.trim(slot, 0)
            graph.leave(draw)
    return counts


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(GraphShape(1.0), id="all tokens"),
        pytest.param(GraphShape(0.7, top_k=20), id="top_k"),
        pytest.param(GraphShape(1.0, top_p=0.7), id="top_p"),
        pytest.param(GraphShape(1.3, min_p=0.05), id="min_p"),
        pytest.param(GraphShape(0.9, top_k=64, top_p=0.95, min_p=0.02), id="all filters"),
        pytest.param(GraphShape(1.0, top_k=12, bias=((7, 6.0), (8, -np.inf))), id="bias"),
    ],
)
def test_draws_have_the_chances_that_the_filters_define(model, context, shape):
    expected = chances(raw_row(context), shape)
    rounds = 250
    counts = drawn(context, model, shape, rounds)
    total = rounds * SLOTS
    assert sum(counts.values()) == total
    assert all(expected[token] > 0 for token in counts), "only what the filters leave"
    statistic, bound = pearson(counts, expected)
    assert statistic < bound


def pearson(counts: Counter[int], expected: np.ndarray) -> tuple[float, float]:
    """The statistic and a bound far beyond chance; tokens of less than five expected draws are one cell."""
    total = counts.total()
    usual = np.flatnonzero(expected * total >= 5)
    cells = [(counts[token], expected[token] * total) for token in usual.tolist()]
    rest = 1.0 - expected[usual].sum()
    if rest * total >= 5:
        cells.append((total - sum(found for found, _ in cells), rest * total))
    freedom = len(cells) - 1
    assert freedom > 3, "a test of two cells says nothing"
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in cells)
    return statistic, freedom + 6 * (2 * freedom) ** 0.5


def test_the_statistic_notices_a_wrong_temperature_and_a_forgotten_filter(model, context):
    logits = raw_row(context)
    counts = drawn(context, model, GraphShape(1.0), 100)
    for wrong in (GraphShape(0.5), GraphShape(1.0, top_k=20)):
        statistic, bound = pearson(counts, chances(logits, wrong))
        assert statistic > bound


def test_greedy_in_the_graph_takes_the_hosts_token_and_tells_of_the_row(model, context):
    logits = raw_row(context)
    graph = GraphSampling(model)
    plain, biased = GraphDraw(GraphShape(), 0), GraphDraw(GraphShape(bias=((77, 50.0),)), 0)
    graph.prepare(context, Slot(0, 0), plain)
    graph.prepare(context, Slot(0, 1), biased)
    graph.prepare(context, Slot(0, 2), None)
    rows = context.decode([(slot, 0, PROMPT, True) for slot in range(3)])
    token, total = context.drawn(rows[0])
    assert token == logits.argmax()
    assert total == pytest.approx(logits.sum(dtype=np.float64), rel=1e-3, abs=0.1)
    assert context.drawn(rows[1])[0] == 77
    assert np.array_equal(context.logits(rows[2]), logits), "a neighbour on the host has its row whole"


def decode_alone(context: NativeContext, slot: int, position: int, token: int) -> int:
    (row,) = context.decode([(slot, position, [token], True)])
    return context.drawn(row)[0]


def test_a_seed_goes_with_its_sequence_through_slots_that_others_take_over(model, context):
    shape = GraphShape(1.5)

    def answer(moves: bool) -> list[int]:
        graph, slot = GraphSampling(model), 0
        draw, found = GraphDraw(shape, 42), []
        for count in range(12):
            if moves and count % 3 == 2:
                other = GraphDraw(shape, 7 + count)
                graph.prepare(context, Slot(0, slot), other)
                assert not draw.is_in_graph
                decode_alone(context, slot, 1, 9)
                context.trim(slot, 0)
                slot = (slot + 3) % SLOTS
            graph.prepare(context, Slot(0, slot), draw)
            # The same row each time: what differs is chance alone.
            found.append(decode_alone(context, slot, 0, 5))
            context.trim(slot, 0)
        for slot in range(SLOTS):
            graph.prepare(context, Slot(0, slot), None)
        graph.leave(draw)
        return found

    unmoved = answer(False)
    assert len(set(unmoved)) > 4
    assert answer(True) == unmoved


def test_neighbours_leave_a_seed_alone(model, context):
    shape = GraphShape(1.5)

    def answer(neighbours: int) -> list[int]:
        graph, found = GraphSampling(model), []
        draws = [GraphDraw(shape, 42 + slot) for slot in range(neighbours + 1)]
        for _ in range(6):
            for slot, draw in enumerate(draws):
                graph.prepare(context, Slot(0, slot), draw)
            rows = context.decode([(slot, 0, PROMPT, True) for slot in range(len(draws))])
            found.append(context.drawn(rows[0])[0])
            context.decode([(SLOTS - 1, 0, PROMPT, False)])  # a prompt that draws nothing
            for slot in range(SLOTS):
                context.trim(slot, 0)
        for slot in range(SLOTS):
            graph.prepare(context, Slot(0, slot), None)
        return found

    assert answer(0) == answer(5)


def test_a_chain_that_the_device_runs_only_in_part_is_left_to_the_host(model, context, monkeypatch):
    monkeypatch.setattr(NativeContext, "attach", lambda *_: False)
    draw = GraphDraw(GraphShape(0.5), 1)
    GraphSampling(model).prepare(context, Slot(0, 0), draw)
    assert not draw.is_in_graph


@pytest.mark.parametrize(
    ("fields", "is_possible"),
    [
        ({}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.001}, False),
        ({"top_k": 40, "top_p": 0.9, "min_p": 0.1}, True),
        ({"top_k": 5000}, False),
        ({"min_p": 0.99}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.5}, False),
        ({"frequency_penalty": 0.5}, False),
        ({"samplers": Samplers(mirostat=2)}, False),
        ({"samplers": Samplers(typical_p=0.5)}, False),
        ({"samplers": Samplers(xtc_probability=0.5)}, False),
        ({"samplers": Samplers(top_n_sigma=1.0)}, False),
        ({"samplers": Samplers(dynatemp_range=0.5)}, False),
        ({"samplers": Samplers(dry_multiplier=0.8)}, False),
        ({"samplers": Samplers(allowed_token_ids=(1, 2))}, False),
    ],
)
def test_what_the_graph_cannot_express_is_told_apart(fields, is_possible):
    shape = graph_shape(ResolvedSampling(**(PLAIN | fields)), (), 49152)
    assert (shape is not None) is is_possible


def test_a_top_k_beyond_the_vocabulary_cuts_nothing():
    shape = graph_shape(ResolvedSampling(**(PLAIN | {"top_k": 500})), (), 259)
    assert shape is not None
    assert shape.top_k == 0


@pytest.mark.parametrize(
    ("total", "is_sound"), [(0.0, True), (-np.inf, True), (np.inf, False), (np.nan, False)]
)
def test_a_rows_sum_tells_whether_it_was_numbers(total, is_sound):
    assert is_number(float(total)) is is_sound


@pytest.mark.parametrize("shape", [GraphShape(), GraphShape(1.0, top_k=10)])
def test_a_row_of_nan_is_seen_though_it_never_leaves_the_device(tmp_path: Path, shape):
    from gguf import GGUFReader

    path = tmp_path / "broken.gguf"
    write_model(path, "full")
    reader = GGUFReader(str(path), "r+")
    output = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    output.data[100, :2] = (0x00, 0x7E)  # the scale of one token's first weights, in 16 bits
    reader.data.flush()
    model = load_model(open_library(), str(path), gpu_layers=0)
    context = model.new_context(
        cells=CELLS, slots=1, is_unified=True, batch=8, threads=1, kv_type="f16", flash_attention=False
    )
    chain = GraphSamplers(model.library, model.vocabulary_size).chain(shape, 1)
    assert context.attach(0, chain)
    assert chain.is_whole
    (row,) = context.decode([(0, 0, PROMPT, True)])
    assert not is_number(context.drawn(row)[1])
    context.free()
    chain.free()
    model.free()
