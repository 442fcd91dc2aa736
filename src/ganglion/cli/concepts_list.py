"""`ganglion concepts list`: the concept packs of this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.cli import concepts_here as place
from ganglion.cli.concept_packs import SUFFIX
from ganglion.cli.models_here import ConfigFile, Here, Json
from ganglion.cli.talk import say

HEADINGS: Final = ("name", "concepts", "layers", "model", "best AUC")


@dataclass(frozen=True, slots=True)
class ListedPack:
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
    from ganglion.cli.output import Row, print_json, print_table

    folder = place.folder_of(Here.read(config))
    packs = [_listed(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if json:
        print_json(packs)
        return
    if not packs:
        say(f"no concept packs in {folder}; ganglion concepts train makes one")
        return
    print_table(HEADINGS, [Row(_cells(pack), pack.error) for pack in packs])


def _listed(path: Path) -> ListedPack:
    from ganglion.core.errors import GanglionError
    from ganglion.engines.concept_making import notes_of
    from ganglion.engines.concept_pack import read_pack

    try:
        manifest = read_pack(path).manifest
    except GanglionError as error:
        return ListedPack(path.stem, str(path), error=error.message)
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
    return ListedPack(
        path.stem,
        str(path),
        tuple(manifest.concepts),
        tuple(manifest.layers),
        manifest.model.name,
        best or None,
        manifest.description,
    )


def _cells(pack: ListedPack) -> tuple[str, ...]:
    from ganglion.cli.words import NOTHING

    return (
        pack.name,
        ", ".join(pack.concepts) or NOTHING,
        ", ".join(map(str, pack.layers)) or NOTHING,
        pack.model or NOTHING,
        ", ".join(f"{best:.3f}" for best in (pack.auc or {}).values()) or NOTHING,
    )
