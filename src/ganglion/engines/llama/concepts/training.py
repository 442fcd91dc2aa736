"""From what was read of two sets of examples to a concept in a pack.

Law: the vector is made of all examples; the numbers beside it come from vectors that had not seen the
examples they were judged on.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

import msgspec
import numpy as np

from ganglion.core.errors import InvalidValue, ModelMismatch
from ganglion.engines.concepts.pack import MAX_CONCEPTS, ConceptPack, PackManifest, PackModel
from ganglion.engines.llama.concepts.directions import (
    Direction,
    LayerScore,
    choose_layers,
    default_layers,
    difference_of_means,
    rounds_of,
    score_layer,
)
from ganglion.engines.llama.native.arrays import Floats

FEWEST_EXAMPLES: Final = 8
"""Of each kind; fewer separate by chance."""
LayerChoice = Literal["common", "best", "named"]
_SHALLOW: Final = 4
"""The first such part of the layers is never chosen: they mostly tell which words stand there."""


class _LayerNotes(msgspec.Struct, frozen=True):
    """How well one layer separates, as the manifest keeps it."""

    auc: float
    auc_logistic: float
    dprime: float


class ConceptNotes(msgspec.Struct, frozen=True):
    """How one concept was made, as the manifest keeps it under `trained`."""

    positive: int
    negative: int
    pool: str
    held_out: float
    examples_sha256: str
    layers: dict[str, _LayerNotes]


@dataclass(frozen=True, slots=True, eq=False)
class TrainedConcept:
    """A concept's vectors after the chosen layers, and how all layers did."""

    name: str
    directions: dict[int, Direction]
    judged: tuple[LayerScore, ...]
    notes: ConceptNotes

    @property
    def chosen(self) -> tuple[int, ...]:
        """The layers of the vectors, in rising order."""
        return tuple(sorted(self.directions))


def train(
    name: str,
    positive: Floats,
    negative: Floats,
    layers: Sequence[int],
    *,
    block_count: int,
    choice: LayerChoice,
    pool: str = "mean",
    held_out: float = 0.25,
    digest: str = "",
    report: Callable[[int, int], None] = lambda done, total: None,
) -> TrainedConcept:
    """Make a concept of examples and their opposites, `[examples, layers, hidden]` each.

    Vectors are made for the layers that all concepts share, for those that separate best, or for all.
    """
    smallest = min(len(positive), len(negative))
    if smallest < FEWEST_EXAMPLES:
        raise InvalidValue(f"A concept needs {FEWEST_EXAMPLES} examples of each kind, found {smallest}.")
    rounds = rounds_of(held_out, smallest)
    judged: list[LayerScore] = []
    for index, layer in enumerate(layers):
        judged.append(score_layer(positive[:, index], negative[:, index], layer, rounds=rounds))
        report(index + 1, len(layers))
    chosen = _chosen(choice, judged, block_count)
    directions = {
        layer: difference_of_means(positive[:, index], negative[:, index])
        for index, layer in enumerate(layers)
        if layer in chosen
    }
    notes = ConceptNotes(
        len(positive),
        len(negative),
        pool,
        held_out,
        digest,
        {str(each.layer): _noted(each) for each in judged},
    )
    return TrainedConcept(name, directions, tuple(judged), notes)


def _chosen(choice: LayerChoice, judged: Sequence[LayerScore], block_count: int) -> tuple[int, ...]:
    layers = tuple(each.layer for each in judged)
    match choice:
        case "common":
            return default_layers(block_count, layers)
        case "best":
            deep = [each for each in judged if each.layer >= max(block_count // _SHALLOW, 1)]
            return choose_layers(deep or judged, block_count)
        case "named":
            return layers
        case _:
            assert_never(choice)


def new_pack(name: str, model: PackModel, concept: TrainedConcept, description: str = "") -> ConceptPack:
    """A pack of one concept."""
    layers = list(concept.chosen)
    manifest = PackManifest(
        name=name,
        concepts=[concept.name],
        layers=layers,
        model=model,
        spans={str(layer): [concept.directions[layer].span] for layer in layers},
        description=description,
        trained={concept.name: msgspec.to_builtins(concept.notes)},
    )
    return ConceptPack(manifest, {layer: concept.directions[layer].vector[None, :] for layer in layers})


def add_concept(pack: ConceptPack, concept: TrainedConcept, description: str = "") -> ConceptPack:
    """The pack with one more concept, or with another version of one that it has."""
    old = pack.manifest
    if list(concept.chosen) != old.layers:
        raise InvalidValue(
            f"The pack {old.name!r} has the layers {old.layers}, and the concept {list(concept.chosen)}.",
            param="layers",
        )
    kept = [index for index, name in enumerate(old.concepts) if name != concept.name]
    if len(kept) >= MAX_CONCEPTS:
        raise InvalidValue(f"The pack {old.name!r} holds {MAX_CONCEPTS} concepts already.", param="concept")
    vectors: dict[int, Floats] = {}
    spans: dict[str, list[float]] = {}
    for layer in old.layers:
        direction = concept.directions[layer]
        vectors[layer] = np.concatenate([pack.vectors[layer][kept], direction.vector[None, :]])
        spans[str(layer)] = [*(float(pack.spans(layer)[index]) for index in kept), direction.span]
    manifest = msgspec.structs.replace(
        old,
        concepts=[*(old.concepts[index] for index in kept), concept.name],
        spans=spans,
        description=description or old.description,
        trained={**old.trained, concept.name: msgspec.to_builtins(concept.notes)},
    )
    return ConceptPack(manifest, vectors)


def check_model(pack: ConceptPack, model: PackModel) -> None:
    """Raise ModelMismatch where the vectors of a pack do not live in a model's stream."""
    theirs = pack.manifest.model
    expected = theirs.architecture, theirs.hidden_size, theirs.block_count
    if expected != (model.architecture, model.hidden_size, model.block_count):
        raise ModelMismatch(
            f"The concept pack {pack.manifest.name!r} is of {_describe_model(theirs)}, "
            f"and this is {_describe_model(model)}.",
            param="model",
            hint=f"Name the model it was trained on ({theirs.name}), or train the concept on this one.",
        )


def notes_of(manifest: PackManifest, concept: str) -> ConceptNotes | None:
    """How a concept was made; None where the manifest does not say it as we do."""
    try:
        return msgspec.convert(manifest.trained.get(concept), ConceptNotes)
    except msgspec.ValidationError:
        return None


def digest_of(positive: Iterable[str], negative: Iterable[str]) -> str:
    """The same for the same examples in any order."""
    sides = [sorted(positive), sorted(negative)]
    return hashlib.sha256(msgspec.json.encode(sides)).hexdigest()


def _noted(judged: LayerScore) -> _LayerNotes:
    return _LayerNotes(round(judged.auc, 4), round(judged.auc_logistic, 4), round(judged.dprime, 4))


def _describe_model(model: PackModel) -> str:
    return f"{model.name} ({model.architecture}, {model.block_count} layers of {model.hidden_size})"
