"""The engines there are: an engine is a folder beside this file and one row here.

Law: nobody else knows an engine by its name, and none is imported before it is chosen.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from ganglion.core.device_layout import LAYOUT_FIELDS
from ganglion.core.errors import EngineUnavailable

if TYPE_CHECKING:  # every command reads the configuration, and most need no more of an engine than its name
    from pathlib import Path

    from ganglion.core.engine import ManagedEngine
    from ganglion.core.machine import EngineFacts
    from ganglion.core.model import ModelFacts

EngineName = Literal["llama", "vllm", "echo"]
DEFAULT_ENGINE: Final[EngineName] = "llama"


_DescribeEngine = Callable[[str, str, Mapping[str, str]], "EngineFacts | None"]
"""From an engine's name, our version and the environment to what is installed; None where nothing is."""


class _EngineFactory(Protocol):
    """Builds the engine of one model; `settings` is an EngineSettings. Nothing is opened yet."""

    def __call__(
        self,
        facts: "ModelFacts | None",
        settings: object,
        *,
        free_memory: int | None,
        free_video_memory: int | None,
    ) -> "ManagedEngine": ...


class Converter(Protocol):
    """Writes a copy of a checkpoint in a format that the engine reads."""

    def __call__(
        self,
        checkpoint: "Path",
        target: "Path",
        *,
        python: "Path",
        cache: "Path",
        size_bytes: int,
        report: Callable[[int, int], None],
        check: Callable[[], None],
    ) -> None:
        """`size_bytes` is how large the copy may become; `check` is asked meanwhile and may raise."""


@dataclass(frozen=True, slots=True)
class _EngineKind:
    """One engine: what it does, where it is built, and the model files it reads."""

    summary: str
    factory: str
    """`module:callable`, an EngineFactory."""
    describe: str
    """`module:function` that looks at what is installed, without loading it: a DescribeEngine."""
    formats: tuple[str, ...] = ()
    """Formats of the files that it reads; empty for an engine whose models need none."""
    converts: tuple[str, ...] = ()
    """Formats whose files can be converted, once, into one that it reads."""
    converter: str = ""
    """`module:function` that does it, a Converter."""
    context: str = ""
    """`module:function` from the asked and the trained context length to the one that it takes."""
    has_plan: bool = False
    """Whether it plans its memory before it is opened, so that the plan can be shown."""
    fills_gpu: bool = False
    """Whether its weights lie on accelerators without anybody asking for that."""
    python: str = ""
    """`module:function` from EngineSettings and the environment to the Python that it runs in, a path; empty
    for an engine that comes with Ganglion."""
    abilities: tuple[str, ...] = ()
    """What it can be asked for, for people; a model says what it can itself."""
    layout: tuple[str, ...] = ()
    """The fields of a DeviceLayout that it honours; any other is refused by its name."""
    layout_section: str | None = None
    """The section of its settings that has these fields; None where they stand among the others."""

    def load(self) -> _EngineFactory:
        """The factory, imported now and not before; raises EngineUnavailable."""
        return cast("_EngineFactory", _imported(self.factory))

    def facts(self, name: str, version: str, environment: Mapping[str, str]) -> "EngineFacts | None":
        """What is installed of it; None where it cannot be used. `version` is ours."""
        describe = cast("_DescribeEngine", _imported(self.describe))
        return describe(name, version, environment)

    def load_converter(self) -> "Converter":
        """What converts a model for it; raises EngineUnavailable."""
        return cast("Converter", _imported(self.converter))

    def context_of(self, asked: int | None, trained: int) -> int:
        """The context that a model gets when so many tokens were asked for."""
        if not self.context:
            return asked or trained
        return cast("Callable[[int | None, int], int]", _imported(self.context))(asked, trained)

    def python_of(self, settings: object, environment: Mapping[str, str]) -> "Path | None":
        """The Python that it is installed for; None where it needs none of its own, or has none here."""
        if not self.python:
            return None
        find = cast("Callable[[object, Mapping[str, str]], Path | None]", _imported(self.python))
        return find(settings, environment)

    def is_installed(self, settings: object, environment: Mapping[str, str]) -> bool:
        """Whether it could be started here, by what lies on the disk."""
        return not self.python or self.python_of(settings, environment) is not None


def _imported(location: str) -> object:
    module, _, name = location.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise EngineUnavailable(
            f"The engine in {module} cannot be loaded: {error}.",
            hint="Reinstall ganglion with its dependencies.",
        ) from error


ENGINES: Final[dict[EngineName, _EngineKind]] = {
    "llama": _EngineKind(
        summary="runs GGUF files",
        factory="ganglion.engines.llama.engine:LlamaEngine",
        formats=("gguf",),
        converts=("safetensors",),
        has_plan=True,
        converter="ganglion.engines.llama.converter.convert:convert_checkpoint",
        context="ganglion.engines.llama.plan:context_of",
        abilities=("chat", "completion", "tools", "embeddings", "rerank", "scoring", "sessions", "readouts"),
        describe="ganglion.engines.llama.native.library_files:describe",
    ),
    "vllm": _EngineKind(
        summary="runs Hugging Face checkpoints on GPUs, in an environment of its own",
        factory="ganglion.engines.vllm.engine:build_vllm",
        formats=("safetensors",),
        abilities=("chat", "completion", "tools", "scoring"),
        layout=LAYOUT_FIELDS,
        layout_section="vllm",
        describe="ganglion.engines.vllm.installed:describe",
        fills_gpu=True,
        context="ganglion.engines.vllm.vllm_plan:context_of",
        python="ganglion.engines.vllm.installed:installed_python",
    ),
    "echo": _EngineKind(
        summary="repeats the prompt, for trying out clients",
        factory="ganglion.engines.echo.engine:build_echo",
        abilities=("chat", "completion", "tools", "embeddings"),
        describe="ganglion.engines.echo.engine:describe_echo",
    ),
}


def engines_that_honour(field: str) -> tuple[EngineName, ...]:
    """The engines that honour a field of a DeviceLayout."""
    return tuple(name for name, kind in ENGINES.items() if field in kind.layout)
