"""The concept packs that a worker was given, checked against the model that it loaded."""

from pathlib import Path

from ganglion.core.errors import LoadFailed
from ganglion.engines.concept_pack import ConceptBook, ConceptPack, bind, read_pack
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.plan import EnginePlan


def load_book(plan: EnginePlan, model: NativeModel) -> ConceptBook | None:
    """The plan's packs side by side, None for none; raises LoadFailed for what is not this model's."""
    packs = [read_pack(Path(path)) for path in plan.concepts]
    for pack in packs:
        _check_model(pack, model)
    return bind(packs)


def _check_model(pack: ConceptPack, model: NativeModel) -> None:
    expected = model.hidden_size, model.block_count
    found = pack.manifest.model.hidden_size, pack.manifest.model.block_count
    if found != expected:
        raise LoadFailed(
            f"The concept pack {pack.manifest.name!r} is of a model with {found[1]} layers of width "
            f"{found[0]}, and this one has {expected[1]} of {expected[0]}.",
            hint=f"It was trained on {pack.manifest.model.name!r}; train it anew on this model.",
        )
