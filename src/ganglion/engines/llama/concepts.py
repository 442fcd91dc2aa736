"""The concept packs of a model that is loaded, checked against it."""

from pathlib import Path

from ganglion.core.errors import LoadFailed
from ganglion.engines.concept_pack import ConceptBook, Manifest, bind, read_pack
from ganglion.engines.llama.library import NativeModel


def open_book(paths: tuple[str, ...], model: NativeModel) -> ConceptBook | None:
    """All packs side by side, None for no pack; raises LoadFailed for one that is not this model's."""
    packs = [read_pack(Path(path)) for path in paths]
    for pack in packs:
        _check(pack.manifest, model)
    return bind(packs)


def _check(manifest: Manifest, model: NativeModel) -> None:
    expected = manifest.model.hidden_size, manifest.model.block_count
    found = model.hidden_size, model.layer_count
    if expected != found:
        raise LoadFailed(
            f"The concept pack {manifest.name!r} is for a model with a hidden size of {expected[0]} and "
            f"{expected[1]} layers; this one has {found[0]} and {found[1]}.",
            hint=f"It was trained on {manifest.model.name}; load it with that model, or train one for this.",
        )
