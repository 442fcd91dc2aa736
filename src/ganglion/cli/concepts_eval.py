"""`ganglion concepts eval`: how well a concept separates examples that it was not made of."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from ganglion.cli import concepts_here as place
from ganglion.cli.concepts_examples import Examples, Negative, Positive, read_examples
from ganglion.cli.models_here import ConfigFile, Here, Json
from ganglion.cli.talk import say, say_warning

if TYPE_CHECKING:
    from ganglion.engines.concept_making import ConceptNotes
    from ganglion.engines.concept_pack import ConceptPack

FEWEST: Final = 2
HEADINGS: Final = ("layer", "AUC", "", "d'", "in training")


@dataclass(frozen=True, slots=True)
class JudgedLayer:
    """One layer, as `--json` prints it."""

    layer: int
    auc: float
    dprime: float
    auc_in_training: float | None
    """What held-out examples gave when the concept was made."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of it, as `--json` prints it."""

    name: str
    concept: str
    model: str
    positive: int
    negative: int
    layers: tuple[JudgedLayer, ...]
    plot: str | None


def evaluate(
    name: place.PackName,
    /,
    *,
    positive: Positive,
    negative: Negative,
    model: place.ModelName = None,
    concept: Annotated[str | None, Parameter(help="Which concept, where the pack holds several.")] = None,
    pool: Annotated[
        Literal["mean", "last"] | None,
        Parameter(help="What is read of an example (default: as in training)."),
    ] = None,
    plot: Annotated[
        Path | None, Parameter(help="Draw AUC by layer into this file (.png, .svg or .pdf).")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Say how well a concept separates, layer by layer."""
    from ganglion.cli.concepts_plot import check_plot, draw
    from ganglion.cli.output import Row, print_json, print_table
    from ganglion.engines.concept_making import notes_of
    from ganglion.engines.concept_pack import read_pack

    if plot is not None:
        check_plot(plot)
    here = Here.read(config)
    pack = read_pack(place.existing(name, here))
    title = place.concept_of(pack, concept)
    notes = notes_of(pack.manifest, title)
    examples = read_examples(positive, negative, fewest=FEWEST)
    _warn_if_seen(examples, notes)
    used: Literal["mean", "last"] = pool or ("last" if notes is not None and notes.pool == "last" else "mean")
    layers = _judged(here, model or place.model_of(pack, here), pack, title, examples, pool=used)
    if plot is not None:
        draw(plot, f"{title} ({pack.manifest.model.name})", layers)
    judged = Judged(
        pack.manifest.name,
        title,
        pack.manifest.model.name,
        len(examples.positive),
        len(examples.negative),
        layers,
        None if plot is None else str(plot),
    )
    if json:
        print_json(judged)
        return
    print_table(HEADINGS, [Row(_cells(each)) for each in layers], right=("layer", "AUC", "d'", "in training"))
    best = max(layers, key=lambda each: each.auc)
    say(f"{title}: best after layer {best.layer}, of {judged.positive} examples, {judged.negative} opposites")
    if plot is not None:
        say(f"drawn into {plot}")


def _judged(
    here: Here,
    model: str,
    pack: "ConceptPack",
    concept: str,
    examples: Examples,
    *,
    pool: Literal["mean", "last"],
) -> tuple[JudgedLayer, ...]:
    from ganglion.engines.concept_making import notes_of
    from ganglion.engines.concept_training import auc, dprime

    read, _ = place.read_texts(here, model, examples.all, layers=pack.manifest.layers, pool=pool, pack=pack)
    count, row = len(examples.positive), pack.manifest.concepts.index(concept)
    notes = notes_of(pack.manifest, concept)
    found = []
    for number, layer in enumerate(read.layers):
        scores = read.values[:, number] @ pack.vectors[layer][row]
        sides = scores[:count], scores[count:]
        before = notes.layers.get(str(layer)) if notes is not None else None
        found.append(
            JudgedLayer(
                layer, round(auc(*sides), 4), round(dprime(*sides), 4), None if before is None else before.auc
            )
        )
    return tuple(found)


def _warn_if_seen(examples: Examples, notes: "ConceptNotes | None") -> None:
    from ganglion.engines.concept_making import digest_of

    if notes is not None and notes.examples_sha256 == digest_of(examples.positive, examples.negative):
        say_warning("these are the examples it was made of, and on these it looks better than it is")


def _cells(each: JudgedLayer) -> tuple[str, ...]:
    from ganglion.cli.words import NOTHING

    before = NOTHING if each.auc_in_training is None else f"{each.auc_in_training:.3f}"
    return str(each.layer), f"{each.auc:.3f}", place.bar(each.auc), f"{each.dprime:.2f}", before
