"""`ganglion concepts list` and `show`: the packs of this machine, and the contents of one."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ganglion.cli.concepts import local_packs
from ganglion.cli.concepts.pack_files import SUFFIX
from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.console import say
from ganglion.cli.terminal.format import NOTHING
from ganglion.cli.terminal.output import TableRow, print_facts, print_json, print_table
from ganglion.core.errors import GanglionError

if TYPE_CHECKING:
    from ganglion.engines.concepts.pack import ConceptPack


_LIST_HEADINGS: Final = ("name", "concepts", "layers", "model", "best AUC")


@dataclass(frozen=True, slots=True)
class _ListedPack:
    """One pack, as `--json` prints it."""

    name: str
    path: str
    concepts: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    model: str | None = None
    auc: dict[str, float] | None = None
    """By concept, the best of its layers on held-out examples; None where nobody noted it."""
    description: str = ""
    error: str | None = None
    """Why it cannot be used."""


def list_packs(*, json: Json = False, config: ConfigFile = None) -> None:
    """Show the concept packs of this machine."""
    folder = local_packs.packs_folder(LocalContext.read(config))
    packs = [_listed(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if json:
        print_json(packs)
        return
    if not packs:
        say(f"no concept packs in {folder}; ganglion concepts train makes one")
        return
    print_table(_LIST_HEADINGS, [TableRow(_cells(pack), pack.error) for pack in packs])


def _listed(path: Path) -> _ListedPack:
    from ganglion.engines.concepts.pack import read_pack
    from ganglion.engines.llama.concepts.training import notes_of

    try:
        manifest = read_pack(path).manifest
    except GanglionError as error:
        return _ListedPack(path.stem, str(path), error=error.message)
    best: dict[str, float] = {}
    for concept in manifest.concepts:
        notes = notes_of(manifest, concept)
        known = (
            [notes.layers[str(layer)].auc for layer in manifest.layers if str(layer) in notes.layers]
            if notes
            else []
        )
        if known:
            best[concept] = max(known)
    return _ListedPack(
        path.stem,
        str(path),
        tuple(manifest.concepts),
        tuple(manifest.layers),
        manifest.model.name,
        best or None,
        manifest.description,
    )


def _cells(pack: _ListedPack) -> tuple[str, ...]:
    return (
        pack.name,
        ", ".join(pack.concepts) or NOTHING,
        ", ".join(map(str, pack.layers)) or NOTHING,
        pack.model or NOTHING,
        ", ".join(f"{best:.3f}" for best in (pack.auc or {}).values()) or NOTHING,
    )


_HEADINGS: Final = ("concept", "layer", "span", "AUC", "", "logistic", "d'")
_MAX_PAIRS: Final = 200
"""More are for programs: --json has them all."""


@dataclass(frozen=True, slots=True)
class _ShownLayer:
    """A concept after one layer, as `--json` prints it."""

    layer: int
    span: float
    auc: float | None
    auc_logistic: float | None
    dprime: float | None


@dataclass(frozen=True, slots=True)
class _ShownConcept:
    """A concept of the pack."""

    name: str
    positive: int | None
    negative: int | None
    pool: str | None
    layers: tuple[_ShownLayer, ...]


@dataclass(frozen=True, slots=True)
class _Cosine:
    """How alike two concepts are, by layer."""

    first: str
    second: str
    layers: dict[int, float]


@dataclass(frozen=True, slots=True)
class _ShownPack:
    """A pack, as `--json` prints it."""

    name: str
    path: str
    description: str
    model: str
    architecture: str
    hidden_size: int
    block_count: int
    layers: tuple[int, ...]
    concepts: tuple[_ShownConcept, ...]
    cosines: tuple[_Cosine, ...]


def show(name: local_packs.PackName, /, *, json: Json = False, config: ConfigFile = None) -> None:
    """Show what a pack holds."""
    from ganglion.engines.concepts.pack import read_pack

    path = local_packs.existing_pack(name, LocalContext.read(config))
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


def _shown(path: str, pack: "ConceptPack") -> _ShownPack:
    manifest = pack.manifest
    return _ShownPack(
        manifest.name,
        path,
        manifest.description,
        manifest.model.name,
        manifest.model.architecture,
        manifest.model.hidden_size,
        manifest.model.block_count,
        tuple(manifest.layers),
        tuple(_concept(pack, number) for number in range(len(manifest.concepts))),
        _cosines(pack),
    )


def _concept(pack: "ConceptPack", row: int) -> _ShownConcept:
    from ganglion.engines.llama.concepts.training import notes_of

    name = pack.manifest.concepts[row]
    notes = notes_of(pack.manifest, name)
    layers = []
    for layer in pack.manifest.layers:
        span = round(float(pack.spans(layer)[row]), 4)
        known = notes.layers.get(str(layer)) if notes is not None else None
        if known is None:
            layers.append(_ShownLayer(layer, span, None, None, None))
        else:
            layers.append(_ShownLayer(layer, span, known.auc, known.auc_logistic, known.dprime))
    if notes is None:
        return _ShownConcept(name, None, None, None, tuple(layers))
    return _ShownConcept(name, notes.positive, notes.negative, notes.pool, tuple(layers))


def _cosines(pack: "ConceptPack") -> tuple[_Cosine, ...]:
    from ganglion.engines.llama.concepts.directions import cosines

    alike = cosines(pack.vectors)
    return tuple(
        _Cosine(first, second, {layer: round(float(each[row, column]), 4) for layer, each in alike.items()})
        for (row, first), (column, second) in combinations(enumerate(pack.manifest.concepts), 2)
    )


def _examples(concept: _ShownConcept) -> str:
    if concept.positive is None:
        return f"{concept.name}: not noted"
    return (
        f"{concept.name}: {concept.positive} and {concept.negative} opposites, {concept.pool} of the tokens"
    )


def _print_layers(shown: _ShownPack) -> None:
    def number(value: float | None, digits: int) -> str:
        return NOTHING if value is None else f"{value:.{digits}f}"

    rows = [
        TableRow(
            (
                concept.name,
                str(each.layer),
                number(each.span, 2),
                number(each.auc, 3),
                local_packs.bar(each.auc or 0.0),
                number(each.auc_logistic, 3),
                number(each.dprime, 2),
            )
        )
        for concept in shown.concepts
        for each in concept.layers
    ]
    print_table(_HEADINGS, rows, right=("layer", "span", "AUC", "logistic", "d'"))


def _print_cosines(shown: _ShownPack) -> None:
    headings = ("cosine", *(f"layer {layer}" for layer in shown.layers))
    rows = [
        TableRow((f"{each.first}, {each.second}", *(f"{value:.3f}" for value in each.layers.values())))
        for each in shown.cosines[:_MAX_PAIRS]
    ]
    print_table(headings, rows, right=headings[1:])
