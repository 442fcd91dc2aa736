"""The engines there are: an engine is a folder beside this file and one row here.

Law: nobody else knows an engine by its name, and none is imported before it is chosen.
"""

import importlib
from dataclasses import dataclass
from typing import Final, Literal, Protocol, cast

from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import EngineUnavailable
from ganglion.core.model import ModelFacts

EngineName = Literal["llama", "echo"]
DEFAULT_ENGINE: Final[EngineName] = "llama"


class EngineFactory(Protocol):
    """Builds the engine of one model; `settings` is an EngineSettings. Nothing is opened yet."""

    def __call__(
        self,
        facts: ModelFacts | None,
        settings: object,
        *,
        free_memory: int | None,
        free_video_memory: int | None,
    ) -> ManagedEngine: ...


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One engine: what it does, where it is built, and the model files it reads."""

    summary: str
    factory: str
    """`module:callable`, an EngineFactory."""
    formats: tuple[str, ...] = ()
    """Formats of the files that it reads; empty for an engine whose models need none."""

    def load(self) -> EngineFactory:
        """The factory, imported now and not before; raises EngineUnavailable."""
        module, _, name = self.factory.partition(":")
        try:
            return cast("EngineFactory", getattr(importlib.import_module(module), name))
        except ImportError as error:
            raise EngineUnavailable(
                f"The engine in {module} cannot be loaded: {error}.",
                hint="Reinstall ganglion with its dependencies.",
            ) from error


ENGINES: Final[dict[EngineName, EngineKind]] = {
    "llama": EngineKind(
        summary="runs GGUF files",
        factory="ganglion.engines.llama.engine:LlamaEngine",
        formats=("gguf",),
    ),
    "echo": EngineKind(
        summary="repeats the prompt, for trying out clients",
        factory="ganglion.engines.echo.engine:build_echo",
    ),
}
SUMMARY: Final = f"{'; '.join(f'`{name}` {kind.summary}' for name, kind in ENGINES.items())}."
