"""This machine for the model commands: its config, its stored models and its hub."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion.cli.flags import OutputFlags
from ganglion.core.home import home_folder

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from ganglion.cli.model_builder import BuildContext
    from ganglion.config import Config
    from ganglion.registry.hub.client import Hub
    from ganglion.registry.hub.embedded import EmbeddedFile
    from ganglion.registry.naming.catalogue import NameCatalogue
    from ganglion.registry.naming.resolver import Resolution, Unresolved
    from ganglion.registry.stores.stored_models import StoredModel


@dataclass(frozen=True)  # no slots: the disk is looked through on first use, and once
class LocalContext:
    """The config, stored models and hub of this machine, each read when it is first needed."""

    config: "Config"
    home: Path

    @classmethod
    def read(cls, config_file: Path | None) -> "LocalContext":
        """With the config of this invocation; raises what is wrong with it."""
        from ganglion.cli.flags import load_config

        config = load_config(OutputFlags(config=config_file))
        return cls(config, home_folder(os.environ))

    @cached_property
    def catalogue(self) -> "NameCatalogue":
        """Everything that a name can mean."""
        from ganglion.cli.compose import finder_of

        return finder_of(self.config, self.home).catalogue()

    @cached_property
    def hub(self) -> "Hub":
        """The hub, and the receipts of what was verified."""
        from ganglion.cli.compose import hub_of

        return hub_of(self.config, self.home)

    @cached_property
    def builds(self) -> "BuildContext":
        """What models are built from here: their engines, their copies."""
        from ganglion.cli.model_builder import BuildContext

        return BuildContext(
            self.config,
            self.home,
            lambda: self.hub,
            stored=self._stored,
        )

    @cached_property
    def embedded(self) -> "EmbeddedFile | None":
        """The embedded model's file, if it is here."""
        from ganglion.registry.hub import embedded

        return embedded.find(embedded.SMOLLM2, self.home / "cache")

    def _stored(self, path: Path) -> "StoredModel | None":
        return self.catalogue.stored_index.by_path.get(path)

    def explain(self, name: str) -> "Resolution | Unresolved":
        """The model that an argument names, by a path or by a name, with the steps of the search."""
        from ganglion.registry.naming.names import operator_path
        from ganglion.registry.naming.resolver import explain

        path = operator_path(name)
        return explain(name if path is None else str(path), self.catalogue, may_be_path=True)

    def resolve(self, name: str) -> "Resolution":
        """The model that an argument names; raises ModelNotFound."""
        from ganglion.core.errors import ModelNotFound
        from ganglion.registry.naming.resolver import Unresolved

        outcome = self.explain(name)
        if isinstance(outcome, Unresolved):
            raise ModelNotFound(outcome.name, hint=outcome.hint)
        return outcome

    def file_of(self, name: str, resolution: "Resolution") -> Path:
        """Where the model that a name means lies; raises ModelNotFound while it is not here."""
        from ganglion.core.errors import ModelNotFound
        from ganglion.registry.naming.resolver import EmbeddedSource, LocalFileSource

        source = resolution.source
        if isinstance(source, LocalFileSource):
            return source.path
        if isinstance(source, EmbeddedSource) and self.embedded is not None:
            return self.embedded.path
        raise ModelNotFound(name, hint=f"It can be downloaded: ganglion models pull {name}")


def local_model_names(_: "CompletionContext") -> list[str]:
    """The names that a shell offers behind a command."""
    local = LocalContext.read(None)
    catalogue = local.catalogue
    names = [
        *catalogue.entry_by_key,
        *(catalogue.id_of(model) for model in catalogue.stored),
        *((catalogue.embedded.id,) if catalogue.embedded else ()),
    ]
    return list(dict.fromkeys(names))


ModelName = Annotated[
    str, Parameter(help="A name from `ganglion models list`, or a file.", completer=local_model_names)
]
