"""Directions, AUC and the choice of layers, against values computed by hand and against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue
from ganglion.engines.llama.concepts.directions import (
    LARGEST_DPRIME,
    LayerScore,
    auc,
    choose_layers,
    cosines,
    difference_of_means,
    dprime,
    folds,
    logistic_probe,
    rounds_of,
    score_layer,
)
from ganglion.engines.llama.concepts.training import FEWEST_EXAMPLES, train

SCORES = st.lists(st.integers(-20, 20), min_size=1, max_size=30).map(lambda each: np.array(each, np.float64))


def clouds(distance: float, count: int = 40, hidden: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of noise, so far apart along the first axis."""
    random = np.random.default_rng(3)
    positive, negative = random.normal(size=(2, count, hidden)).astype(np.float32)
    positive[:, 0] += distance
    return positive, negative


def judged(layer: int, value: float, spread: float = 1.0) -> LayerScore:
    return LayerScore(layer, value, value, spread)


def test_the_difference_of_means_is_a_unit_vector_and_the_distance_along_it() -> None:
    positive = np.array([[3, 4], [5, 4]], np.float32)
    negative = np.array([[1, 0], [1, 2]], np.float32)
    direction = difference_of_means(positive, negative)
    np.testing.assert_allclose(direction.vector, [0.70710678, 0.70710678], rtol=1e-6)
    assert direction.span == pytest.approx(math.hypot(3, 3))
    assert direction.vector.dtype == np.float32


def test_two_sets_with_one_mean_have_no_direction() -> None:
    with pytest.raises(InvalidValue, match="same mean"):
        difference_of_means(np.ones((2, 3), np.float32), np.ones((5, 3), np.float32))


def test_auc_by_hand() -> None:
    # Of the six pairs 3>1, 3>2, 2>1 win, 2=2 is half, 0 loses twice.
    assert auc(np.array([3.0, 2.0, 0.0]), np.array([1.0, 2.0])) == pytest.approx(3.5 / 6)
    assert auc(np.array([2.0]), np.array([1.0])) == 1.0
    assert auc(np.array([1.0]), np.array([1.0])) == 0.5


@given(SCORES, SCORES)
def test_auc_is_the_rank_statistic_ties_counting_half(positive: np.ndarray, negative: np.ndarray) -> None:
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in positive for b in negative]
    assert auc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


@given(SCORES, SCORES, st.floats(0.125, 8), st.integers(-100, 100))
def test_auc_does_not_change_under_monotone_maps(
    positive: np.ndarray, negative: np.ndarray, scale: float, shift: int
) -> None:
    expected = auc(positive, negative)
    assert auc(np.exp(positive), np.exp(negative)) == expected
    assert auc(positive**3 * scale + shift, negative**3 * scale + shift) == expected
    assert auc(negative, positive) == pytest.approx(1 - expected)


def test_dprime_by_hand() -> None:
    # Means 4 and 1, variances 4 and 1: 3 / sqrt(2.5).
    found = dprime(np.array([2.0, 4.0, 6.0]), np.array([0.0, 1.0, 2.0]))
    assert found == pytest.approx(3 / math.sqrt(2.5))
    assert dprime(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.0
    assert dprime(np.array([1.0]), np.array([2.0])) == -LARGEST_DPRIME


def test_a_logistic_probe_finds_the_axis_that_separates() -> None:
    positive, negative = clouds(4.0, count=400)
    probe = logistic_probe(positive, negative)
    assert np.linalg.norm(probe) == pytest.approx(1, abs=1e-5)
    assert probe[0] > 0.9


def test_a_logistic_probe_sees_past_a_loud_axis_that_says_nothing() -> None:
    positive, negative = clouds(1.5, count=60, hidden=8)
    noise = np.random.default_rng(8).normal(size=120).astype(np.float32) * 30
    positive[:, 5] += noise[:60]
    negative[:, 5] += noise[60:]
    result = score_layer(positive, negative, 0, rounds=4)
    assert result.auc_logistic > 0.75 > result.auc


def test_in_one_dimension_a_logistic_probe_points_to_the_examples() -> None:
    positive, negative = np.array([[2.0], [3.0], [1.0]], np.float32), np.array([[0.0], [1.5]], np.float32)
    assert logistic_probe(positive, negative) == pytest.approx([1.0])
    assert logistic_probe(negative, positive) == pytest.approx([-1.0])


def test_every_example_is_held_out_exactly_once() -> None:
    rounds = list(folds(10, 4))
    assert sorted(np.concatenate([held for _, held in rounds]).tolist()) == list(range(10))
    assert all(not set(learnt) & set(held) for learnt, held in rounds)
    assert all(len(learnt) + len(held) == 10 for learnt, held in rounds)


@pytest.mark.parametrize(("share", "smallest", "expected"), [(0.25, 40, 4), (0.5, 40, 2), (0.01, 8, 8)])
def test_rounds_follow_the_share(share: float, smallest: int, expected: int) -> None:
    assert rounds_of(share, smallest) == expected


def test_what_is_apart_is_found_and_noise_is_not() -> None:
    assert score_layer(*clouds(4.0), 7, rounds=4).auc > 0.95
    assert 0.3 < score_layer(*clouds(0.0), 7, rounds=4).auc < 0.7


def test_layers_are_chosen_by_auc_and_then_apart() -> None:
    known = [judged(layer, 0.99 if layer in (10, 11, 12) else 0.9 - layer / 1000) for layer in range(1, 31)]
    assert choose_layers(known, 32) == (1, 5, 10, 14)


def test_of_equal_layers_the_wider_gap_wins_and_then_the_earlier_layer() -> None:
    known = [judged(layer, 1.0, 5.0 if layer == 20 else 2.0) for layer in range(8, 31)]
    assert choose_layers(known, 32) == (8, 12, 16, 20)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=80), st.randoms(use_true_random=False))
def test_the_choice_is_deterministic_rising_and_as_many_as_there_are(
    values: list[float], chance: object
) -> None:
    known = [judged(layer, value) for layer, value in enumerate(values)]
    chosen = choose_layers(known, len(known) + 1)
    chance.shuffle(known)  # type: ignore[attr-defined]
    assert choose_layers(known, len(known) + 1) == chosen
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == min(4, len(known))
    assert max(known, key=lambda each: round(each.auc, 4)).layer in range(len(values))


def test_cosines_of_concepts_by_layer() -> None:
    vectors = {4: np.array([[1, 0], [0.6, 0.8]], np.float32)}
    np.testing.assert_allclose(cosines(vectors)[4], [[1, 0.6], [0.6, 1]], rtol=1e-6)


def test_automatic_layers_leave_the_shallow_ones_out_and_named_ones_are_kept() -> None:
    positive, negative = (np.repeat(each[:, None], 15, axis=1) for each in clouds(3.0, hidden=4))
    made = train("up", positive, negative, range(15), block_count=16, choice="best")
    assert made.chosen == (4, 6, 8, 10)
    assert len(made.judged) == 15
    named = train("up", positive[:, :2], negative[:, :2], (0, 9), block_count=16, choice="named")
    assert named.chosen == (0, 9)


@pytest.mark.parametrize(
    ("block_count", "layers"), [(30, (10, 15, 20, 25)), (16, (5, 8, 10, 13)), (4, (1, 2)), (2, (0,))]
)
def test_by_default_every_concept_of_a_model_is_read_after_the_same_layers(
    block_count: int, layers: tuple[int, ...]
) -> None:
    for distance in (0.5, 3.0):
        positive, negative = (
            np.repeat(each[:, None], block_count - 1, axis=1) for each in clouds(distance, hidden=4)
        )
        positive[:, 0] += 5
        readable = range(block_count - 1)
        assert train("up", positive, negative, readable, block_count=block_count, choice="common").chosen == (
            layers
        )


def test_too_few_examples_are_refused() -> None:
    few = np.ones((FEWEST_EXAMPLES - 1, 1, 4), np.float32)
    with pytest.raises(InvalidValue, match="8 examples"):
        train("few", few, few, (3,), block_count=8, choice="named")
