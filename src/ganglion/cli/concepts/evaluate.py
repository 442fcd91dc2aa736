"""`ganglion concepts eval`: how well a concept separates examples that it was not made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from ganglion.cli.concepts import local_packs
from ganglion.cli.concepts.examples import Examples, Negative, Positive, read_examples
from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.console import say, say_warning
from ganglion.cli.terminal.format import NOTHING
from ganglion.cli.terminal.output import TableRow, print_json, print_table
from ganglion.core.errors import InvalidValue, UnsupportedParameter

if TYPE_CHECKING:
    from ganglion.engines.concepts.pack import ConceptPack
    from ganglion.engines.llama.concepts.training import ConceptNotes

_FEWEST: Final = 2
_HEADINGS: Final = ("layer", "AUC", "", "d'", "in training")


@dataclass(frozen=True, slots=True)
class _LayerEvaluation:
    """One layer, as `--json` prints it."""

    layer: int
    auc: float
    dprime: float
    auc_in_training: float | None
    """What held-out examples gave when the concept was made."""


@dataclass(frozen=True, slots=True)
class _ConceptEvaluation:
    """The result, as `--json` prints it."""

    name: str
    concept: str
    model: str
    positive: int
    negative: int
    layers: tuple[_LayerEvaluation, ...]
    plot: str | None


def evaluate(
    name: local_packs.PackName,
    /,
    *,
    positive: Positive,
    negative: Negative,
    model: local_packs.ModelName = None,
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
    from ganglion.engines.concepts.pack import read_pack
    from ganglion.engines.llama.concepts.training import notes_of

    if plot is not None:
        _check_plot(plot)
    local = LocalContext.read(config)
    pack = read_pack(local_packs.existing_pack(name, local))
    title = local_packs.concept_of(pack, concept)
    notes = notes_of(pack.manifest, title)
    examples = read_examples(positive, negative, fewest=_FEWEST)
    _warn_if_seen(examples, notes)
    used: Literal["mean", "last"] = pool or ("last" if notes is not None and notes.pool == "last" else "mean")
    layers = _evaluated_layers(
        local, model or local_packs.model_of(pack, local), pack, title, examples, pool=used
    )
    if plot is not None:
        _draw(plot, f"{title} ({pack.manifest.model.name})", layers)
    judged = _ConceptEvaluation(
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
    print_table(
        _HEADINGS, [TableRow(_cells(each)) for each in layers], right=("layer", "AUC", "d'", "in training")
    )
    best = max(layers, key=lambda each: each.auc)
    say(f"{title}: best after layer {best.layer}, of {judged.positive} examples, {judged.negative} opposites")
    if plot is not None:
        say(f"drawn into {plot}")


def _evaluated_layers(
    local: LocalContext,
    model: str,
    pack: "ConceptPack",
    concept: str,
    examples: Examples,
    *,
    pool: Literal["mean", "last"],
) -> tuple[_LayerEvaluation, ...]:
    from ganglion.engines.llama.concepts.directions import auc, dprime
    from ganglion.engines.llama.concepts.training import notes_of

    read, _ = local_packs.read_texts(
        local, model, examples.all, layers=pack.manifest.layers, pool=pool, pack=pack
    )
    count, row = len(examples.positive), pack.manifest.concepts.index(concept)
    notes = notes_of(pack.manifest, concept)
    found = []
    for number, layer in enumerate(read.layers):
        scores = read.values[:, number] @ pack.vectors[layer][row]
        sides = scores[:count], scores[count:]
        before = notes.layers.get(str(layer)) if notes is not None else None
        found.append(
            _LayerEvaluation(
                layer, round(auc(*sides), 4), round(dprime(*sides), 4), None if before is None else before.auc
            )
        )
    return tuple(found)


def _warn_if_seen(examples: Examples, notes: "ConceptNotes | None") -> None:
    from ganglion.engines.llama.concepts.training import digest_of

    if notes is not None and notes.examples_sha256 == digest_of(examples.positive, examples.negative):
        say_warning("these are the examples it was made of, and on these it looks better than it is")


def _cells(each: _LayerEvaluation) -> tuple[str, ...]:
    before = NOTHING if each.auc_in_training is None else f"{each.auc_in_training:.3f}"
    return str(each.layer), f"{each.auc:.3f}", local_packs.bar(each.auc), f"{each.dprime:.2f}", before


_SUFFIXES: Final = (".png", ".svg", ".pdf")


def _check_plot(path: Path) -> None:
    """Raise what would keep a plot from being drawn, before anything long is begun."""
    if path.suffix not in _SUFFIXES:
        raise InvalidValue(
            f"--plot names {path}; expected a file that ends in {', '.join(_SUFFIXES)}.", param="plot"
        )
    if find_spec("matplotlib") is None:
        raise UnsupportedParameter(
            "The package matplotlib, with which plots are drawn, is not installed.",
            param="plot",
            hint="pip install 'ganglion[plots]'",
        )


def _draw(path: Path, title: str, layers: "Sequence[_LayerEvaluation]") -> None:
    """Draw AUC by layer; raises InvalidValue where the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, wherever this runs
    axes = figure.add_subplot()
    numbers = [each.layer for each in layers]
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", label="chance")
    axes.plot(numbers, [each.auc for each in layers], marker="o", label="these examples")
    known = [(each.layer, each.auc_in_training) for each in layers if each.auc_in_training is not None]
    if known:
        axes.plot(*zip(*known, strict=True), marker="x", linestyle="--", label="held out in training")
    axes.set(title=title, xlabel="layer", ylabel="AUC", xticks=numbers, ylim=(0.0, 1.05))
    axes.legend(loc="lower right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error.strerror}.", param="plot") from error
