"""The arithmetic of concepts: directions that separate two sets of vectors, and how well they do.

Law: pure and deterministic; the same examples give the same vectors, the same numbers and the same layers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import InvalidValue
from ganglion.engines.llama.native.arrays import Floats

_Doubles = npt.NDArray[np.float64]

_CHOSEN_LAYERS: Final = 4
"""So many are enough to see where a concept forms, and few enough that reading them is cheap."""
_DEPTHS: Final = ((1, 3), (1, 2), (2, 3), (5, 6))
"""Where they lie unless somebody says otherwise, in parts of the model's depth: where concepts mostly
separate, and the same for every concept, so that packs of one model can be served together."""
_SPREAD: Final = 8
"""Chosen layers lie at least this part of the model's depth apart: neighbours say the same."""
LARGEST_DPRIME: Final = 99.0
"""Stands for classes without any spread, which no JSON number could."""
_SEED: Final = 20_240_229
_L2: Final = 0.1
_NEWTON_STEPS: Final = 25
_NEWTON_TOLERANCE: Final = 1e-8


@dataclass(frozen=True, slots=True)
class LayerScore:
    """How well two sets come apart after one layer, by vectors that never saw what they are judged on."""

    layer: int
    auc: float
    """Of the difference of means."""
    auc_logistic: float
    dprime: float
    """Of the difference of means: distance of the classes in units of their own spread."""


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """A unit vector, and how far apart the means of the two sets lie along it."""

    vector: Floats
    span: float


def difference_of_means(positive: Floats, negative: Floats) -> Direction:
    """From the mean of the one set to the mean of the other; raises InvalidValue where they are the same."""
    difference = positive.mean(axis=0, dtype=np.float64) - negative.mean(axis=0, dtype=np.float64)
    span = float(np.linalg.norm(difference))
    if not math.isfinite(span) or span < 1e-12:
        raise InvalidValue(
            "The two sets of examples have the same mean, so no direction leads from one to the other.",
            hint="Give examples that differ in the concept.",
        )
    return Direction((difference / span).astype(np.float32), span)


def logistic_probe(positive: Floats, negative: Floats, *, l2: float = _L2) -> Floats:
    """The direction of a logistic regression with an L2 penalty, of unit length."""
    examples = np.concatenate([positive, negative]).astype(np.float64)
    centred = examples - examples.mean(axis=0)
    scale = float(np.sqrt(np.mean(centred**2))) or 1.0
    axes = _axes(centred / scale)
    labels = np.repeat([1.0, 0.0], [len(positive), len(negative)])
    weights = _newton(centred / scale @ axes, labels, l2) @ axes.T
    length = float(np.linalg.norm(weights))
    if length < 1e-300:
        return difference_of_means(positive, negative).vector
    vector: Floats = (weights / length).astype(np.float32)
    return vector


def _axes(examples: _Doubles) -> _Doubles:
    """An orthonormal basis of what the examples span, `[hidden, rank]`: outside of it all weights are 0.

    There are rarely as many examples as dimensions, so their products with each other are the smaller matrix.
    """
    if len(examples) > examples.shape[1]:
        return np.eye(examples.shape[1])
    squares, left = np.linalg.eigh(examples @ examples.T)
    kept = squares > 1e-10 * max(float(squares[-1]), 1e-300)
    axes: _Doubles = examples.T @ (left[:, kept] / np.sqrt(squares[kept]))
    return axes


def _newton(features: _Doubles, labels: _Doubles, l2: float) -> _Doubles:
    """Weights at the least penalised loss, by Newton steps that are halved until they help."""
    inputs = np.column_stack([features, np.ones(len(features))])
    penalty = np.full(inputs.shape[1], l2)
    penalty[-1] = 1e-9  # the offset is free
    weights = np.zeros(inputs.shape[1])
    loss = _loss(inputs, labels, weights, penalty)
    for _ in range(_NEWTON_STEPS):
        chances = 0.5 * (1.0 + np.tanh(0.5 * (inputs @ weights)))
        gradient = inputs.T @ (chances - labels) + penalty * weights
        curvature = (inputs * (chances * (1.0 - chances))[:, None]).T @ inputs + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while (tried := _loss(inputs, labels, weights - size * step, penalty)) > loss and size > 1e-4:
            size /= 2
        if tried >= loss:
            break
        weights, gained, loss = weights - size * step, loss - tried, tried
        if gained < _NEWTON_TOLERANCE * max(loss, 1.0):
            break
    result: _Doubles = weights[:-1]
    return result


def _loss(inputs: _Doubles, labels: _Doubles, weights: _Doubles, penalty: _Doubles) -> float:
    sums = inputs @ weights
    return float(np.sum(np.logaddexp(0.0, sums) - labels * sums) + 0.5 * np.sum(penalty * weights**2))


def auc(positive: Floats | _Doubles, negative: Floats | _Doubles) -> float:
    """How often a positive score lies above a negative one, a tie counting half; 0.5 is chance."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    up_to = np.searchsorted(ordered, positive, side="right")
    return float((below + up_to).sum()) / (2 * len(positive) * len(negative))


def dprime(positive: Floats | _Doubles, negative: Floats | _Doubles) -> float:
    """The distance of two sets of scores in units of their own spread."""
    first, second = positive.astype(np.float64), negative.astype(np.float64)
    distance = float(first.mean() - second.mean())
    spread = math.sqrt((_variance(first) + _variance(second)) / 2)
    if abs(distance) >= LARGEST_DPRIME * spread:
        return math.copysign(LARGEST_DPRIME, distance) if distance else 0.0
    return distance / spread


def _variance(scores: _Doubles) -> float:
    return float(scores.var(ddof=1)) if len(scores) > 1 else 0.0


def folds(count: int, rounds: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """So many times what is learnt from and what is held out; everything is held out exactly once."""
    order = np.random.default_rng(_SEED).permutation(count)
    for number in range(rounds):
        held_out = order[number::rounds]
        yield np.setdiff1d(order, held_out), np.sort(held_out)


def rounds_of(held_out: float, smallest: int) -> int:
    """How many rounds hold each example out once, a share at a time; never more than there are examples."""
    return min(max(round(1 / held_out), 2), smallest)


def score_layer(positive: Floats, negative: Floats, layer: int, *, rounds: int) -> LayerScore:
    """How well one layer separates, `[examples, hidden]` each, averaged over all rounds."""
    found = []
    splits = zip(folds(len(positive), rounds), folds(len(negative), rounds), strict=True)
    for (learnt, held), (learnt_too, held_too) in splits:
        means = difference_of_means(positive[learnt], negative[learnt_too]).vector
        probe = logistic_probe(positive[learnt], negative[learnt_too])
        ours, theirs = positive[held], negative[held_too]
        along = ours @ means, theirs @ means
        found.append((auc(*along), auc(ours @ probe, theirs @ probe), dprime(*along)))
    return LayerScore(layer, *(float(each) for each in np.mean(found, axis=0)))


def default_layers(block_count: int, readable: Sequence[int]) -> tuple[int, ...]:
    """The layers that every concept of a model is read after by default, whatever its examples say."""
    deepest = max(readable)
    return tuple(sorted({min(block_count * part // whole, deepest) for part, whole in _DEPTHS}))


def choose_layers(
    judged: Sequence[LayerScore], block_count: int, count: int = _CHOSEN_LAYERS
) -> tuple[int, ...]:
    """The layers that separate best and lie apart, in rising order.

    Equal AUCs are common, and then the wider gap wins, and then the earlier layer.
    """
    best_first = sorted(judged, key=lambda each: (-round(each.auc, 4), -round(each.dprime, 3), each.layer))
    for gap in range(max(block_count // _SPREAD, 1), 0, -1):
        chosen: list[int] = []
        for each in best_first:
            if len(chosen) < count and all(abs(each.layer - other) >= gap for other in chosen):
                chosen.append(each.layer)
        if len(chosen) == count:
            break
    return tuple(sorted(chosen))


def cosines(vectors: Mapping[int, Floats]) -> dict[int, _Doubles]:
    """By layer, how alike each two concepts are: 1 is the same direction, 0 has nothing in common."""
    return {
        layer: each.astype(np.float64) @ each.T.astype(np.float64) for layer, each in sorted(vectors.items())
    }
