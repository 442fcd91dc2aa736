"""The load and the model that a GPU is measured with."""

from pathlib import Path

import pytest
from benchmarks.gpu import FULL, SMALL, goals
from benchmarks.random_model import EIGHT_BILLION, Shape, write_random_model
from benchmarks.token_load import Course, outcome

from ganglion.registry.files.gguf import read_facts


def test_rates_count_from_the_first_request_to_the_last_token():
    found = outcome([Course(0.0, (1.0, 1.5, 2.0), 30), Course(0.5, (1.0, 4.0), 10)])
    assert found.tokens_per_s == 10.0
    assert (found.first_median_s, found.first_worst_s, found.gap_worst_s) == (1.0, 1.0, 3.0)


def test_what_failed_is_counted_and_all_of_them_is_an_error():
    bad = Course(0.0, (), 0, "refused")
    assert outcome([Course(0.0, (1.0,), 1), bad]).failed == 1
    with pytest.raises(ValueError, match="refused"):
        outcome([bad])


def test_every_goal_names_a_measure_of_the_plan():
    measures = {goal.measure for goal in goals(FULL)}
    assert {"1 streams", "256 sampled", "prompt of 4096", "all first tokens of 256"} <= measures
    assert len(goals(SMALL)) < len(goals(FULL))


def test_a_random_model_is_a_model_of_its_shape(tmp_path: Path):
    shape = Shape("small", 64, 3, 4, 2, 128, 49200, context=512)
    write_random_model(tmp_path / "small.gguf", shape)
    facts = read_facts(tmp_path / "small.gguf")
    assert (facts.block_count, facts.vocabulary_size, facts.context_length) == (3, 49200, 512)
    assert len(set(facts.block_bytes)) == 1
    assert facts.block_bytes[0] == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 2 * 64 * 4


def test_the_large_shape_has_eight_billion_weights():
    total = sum(rows * columns for _, rows, columns in EIGHT_BILLION.matrices)
    assert 8.0e9 < total < 8.1e9
