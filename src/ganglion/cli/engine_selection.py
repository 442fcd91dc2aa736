"""The engine of each model on this machine: what is installed and configured here, asked for the rule."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ganglion.core.engine import LoadOptions
from ganglion.core.errors import EngineUnavailable
from ganglion.engines.choice import EngineChoice, EnginesHere, choose_engine, preferred_formats, runners_of
from ganglion.engines.converting import converter_python
from ganglion.engines.settings import EngineSettings
from ganglion.engines.table import ENGINES, EngineName
from ganglion.registry.files.formats import FORMATS, Format, format_of_tag
from ganglion.registry.files.model_files import format_of
from ganglion.registry.files.safetensors import code_of, refuse_code
from ganglion.registry.naming.manifest import ManifestEntry
from ganglion.registry.naming.resolver import HubSource, Resolution


@dataclass(frozen=True, slots=True)
class EngineSelection:
    """Chooses for the models of one configuration."""

    settings: EngineSettings
    environment: Mapping[str, str]

    @classmethod
    def on_this_machine(cls, settings: EngineSettings) -> "EngineSelection":
        """With the environment of this process."""
        return cls(settings, os.environ)

    def choose(
        self, model: str, model_format: Format, entry: ManifestEntry | None, options: LoadOptions
    ) -> EngineChoice:
        """The engine that a load of this model takes; raises InvalidValue or EngineUnavailable."""
        return choose_engine(
            model,
            model_format,
            here=self._here(),
            loaded_with=options.engine,
            entry=None if entry is None else entry.engine,
        )

    def expected(self, resolution: Resolution, path: Path | None) -> tuple[str, tuple[str, ...]]:
        """The engine that a load would take as far as that is known, and all that a load may ask for."""
        entry, model_format = resolution.entry, known_format(resolution, path)
        runners = runners_of(model_format)
        if model_format is None:
            named = None if entry is None else entry.engine
            return named or self.settings.name, runners
        try:
            return self.choose(resolution.id, model_format, entry, LoadOptions()).engine, runners
        except EngineUnavailable:
            return next(iter(runners), self.settings.name), runners

    def check_code(self, path: Path) -> None:
        """Raise LoadFailed for a checkpoint that brings code along, unless the operator trusts such code."""
        if format_of(path) == "safetensors" and not self.settings.vllm.trust_remote_code:
            refuse_code(str(path), code_of(path))

    def converter(self) -> Path | None:
        """The Python that converts checkpoints; None where there is none."""
        return converter_python(self.settings, self.environment)

    def _here(self) -> EnginesHere:
        installed = {
            name for name, kind in ENGINES.items() if kind.is_installed(self.settings, self.environment)
        }
        return EnginesHere(self.settings.name, installed, can_convert=self.converter() is not None)


def formats_for(engine: EngineName) -> tuple[Format, ...]:
    """The formats of models, those that this engine reads first in front."""
    order = preferred_formats(engine)
    return tuple(sorted(FORMATS, key=lambda each: order.index(each) if each in order else len(order)))


def known_format(resolution: Resolution, path: Path | None) -> Format | None:
    """The format of a model; None while only its hub could say."""
    source = resolution.source
    if path is None and isinstance(source, HubSource):
        return format_of_tag(source.quant)
    return "gguf" if path is None else format_of(path)
