"""The facts of a model on disk with the projector that it sees or hears with."""

from collections.abc import Callable
from pathlib import Path

from ganglion.core.model import ModelFacts
from ganglion.registry.files.model_files import format_of, read_model_facts
from ganglion.registry.files.projectors import (
    NONE,
    projector_beside,
    read_projector,
    with_projector,
    with_projector_beside,
)
from ganglion.registry.stores.stored_models import StoredModel
from ganglion.registry.stores.walk import SUFFIX


def read_whole_facts(
    path: Path, *, named: str | None = None, find: Callable[[Path], StoredModel | None] = lambda _: None
) -> ModelFacts:
    """The facts over all files of a model; raises ModelNotFound or LoadFailed.

    `named` is the projector that the operator named, or "none"; left out, it is the one that lies beside the
    model. Where file names say nothing, `find` gives what the stores know of it.
    """
    facts = read_model_facts(path)
    if format_of(path) != "gguf":
        return facts
    if named == NONE:
        return with_projector(facts, None)
    if named is not None:
        return with_projector(facts, read_projector(Path(named).expanduser()))
    if path.suffix.casefold() == SUFFIX:
        return with_projector_beside(facts, projector_beside(path))
    stored = find(path)
    return with_projector_beside(facts, None if stored is None else stored.projector)
