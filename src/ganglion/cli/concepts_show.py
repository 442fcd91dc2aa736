"""`ganglion concepts show`: what a concept pack holds, and how alike its concepts are."""

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from ganglion.cli import concepts_here as place
from ganglion.cli.models_here import ConfigFile, Here, Json

if TYPE_CHECKING:
    from ganglion.engines.concept_pack import ConceptPack

HEADINGS: Final = ("concept", "layer", "span", "AUC", "", "logistic", "d'")
MAX_PAIRS: Final = 200
"""More are for programs: --json has them all."""


@dataclass(frozen=True, slots=True)
class ShownLayer:
    """A concept after one layer, as `--json` prints it."""

    layer: int
    span: float
    auc: float | None
    auc_logistic: float | None
    dprime: float | None


@dataclass(frozen=True, slots=True)
class ShownConcept:
    """A concept of the pack."""

    name: str
    positive: int | None
    negative: int | None
    pool: str | None
    layers: tuple[ShownLayer, ...]


@dataclass(frozen=True, slots=True)
class Cosine:
    """How alike two concepts are, by layer."""

    first: str
    second: str
    layers: dict[int, float]


@dataclass(frozen=True, slots=True)
class ShownPack:
    """A pack, as `--json` prints it."""

    name: str
    path: str
    description: str
    model: str
    architecture: str
    hidden_size: int
    block_count: int
    layers: tuple[int, ...]
    concepts: tuple[ShownConcept, ...]
    cosines: tuple[Cosine, ...]


def show(name: place.PackName, /, *, json: Json = False, config: ConfigFile = None) -> None:
    """Show what a pack holds."""
    from ganglion.cli.output import print_facts, print_json
    from ganglion.engines.concept_pack import read_pack

    path = place.existing(name, Here.read(config))
    shown = _shown(str(path), read_pack(path))
    if json:
        print_json(shown)
        return
    facts = [
        ("name", shown.name),
        ("description", shown.description),
        ("model", f"{shown.model} ({shown.architecture}, {shown.block_count} layers of {shown.hidden_size})"),
        ("layers", ", ".join(map(str, shown.layers))),
        ("examples", "\n".join(_examples(each) for each in shown.concepts)),
        ("file", shown.path),
    ]
    print_facts([(key, value) for key, value in facts if value])
    _print_layers(shown)
    if shown.cosines:
        _print_cosines(shown)


def _shown(path: str, pack: "ConceptPack") -> ShownPack:
    manifest = pack.manifest
    return ShownPack(
        manifest.name,
        path,
        manifest.description,
        manifest.model.name,
        manifest.model.architecture,
        manifest.model.hidden_size,
        manifest.model.block_count,
        tuple(manifest.layers),
        tuple(_concept(pack, place_of) for place_of in range(len(manifest.concepts))),
        _cosines(pack),
    )


def _concept(pack: "ConceptPack", row: int) -> ShownConcept:
    from ganglion.engines.concept_making import notes_of

    name = pack.manifest.concepts[row]
    notes = notes_of(pack.manifest, name)
    layers = []
    for layer in pack.manifest.layers:
        span = round(float(pack.spans(layer)[row]), 4)
        known = notes.layers.get(str(layer)) if notes is not None else None
        if known is None:
            layers.append(ShownLayer(layer, span, None, None, None))
        else:
            layers.append(ShownLayer(layer, span, known.auc, known.auc_logistic, known.dprime))
    if notes is None:
        return ShownConcept(name, None, None, None, tuple(layers))
    return ShownConcept(name, notes.positive, notes.negative, notes.pool, tuple(layers))


def _cosines(pack: "ConceptPack") -> tuple[Cosine, ...]:
    from ganglion.engines.concept_training import cosines

    alike = cosines(pack.vectors)
    return tuple(
        Cosine(first, second, {layer: round(float(each[row, column]), 4) for layer, each in alike.items()})
        for (row, first), (column, second) in combinations(enumerate(pack.manifest.concepts), 2)
    )


def _examples(concept: ShownConcept) -> str:
    if concept.positive is None:
        return f"{concept.name}: not noted"
    return (
        f"{concept.name}: {concept.positive} and {concept.negative} opposites, {concept.pool} of the tokens"
    )


def _print_layers(shown: ShownPack) -> None:
    from ganglion.cli.output import Row, print_table
    from ganglion.cli.words import NOTHING

    def number(value: float | None, digits: int) -> str:
        return NOTHING if value is None else f"{value:.{digits}f}"

    rows = [
        Row(
            (
                concept.name,
                str(each.layer),
                number(each.span, 2),
                number(each.auc, 3),
                place.bar(each.auc or 0.0),
                number(each.auc_logistic, 3),
                number(each.dprime, 2),
            )
        )
        for concept in shown.concepts
        for each in concept.layers
    ]
    print_table(HEADINGS, rows, right=("layer", "span", "AUC", "logistic", "d'"))


def _print_cosines(shown: ShownPack) -> None:
    from ganglion.cli.output import Row, print_table

    headings = ("cosine", *(f"layer {layer}" for layer in shown.layers))
    rows = [
        Row((f"{each.first}, {each.second}", *(f"{value:.3f}" for value in each.layers.values())))
        for each in shown.cosines[:MAX_PAIRS]
    ]
    print_table(headings, rows, right=headings[1:])
