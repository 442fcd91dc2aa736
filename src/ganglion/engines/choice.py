"""Which engine runs a model. Pure: what is installed is handed in.

Law: whoever asked for an engine by name gets that one or an error, first the load, then `models.yaml`. Where
nobody did, it is the configured engine if it reads the model's format, else the first installed one that
does, else one that a converted copy is made for, and else an error that says what to install.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ganglion.core.errors import EngineUnavailable, InvalidValue
from ganglion.engines.table import ENGINES, EngineName


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that runs a model, and in words why."""

    engine: EngineName
    why: str
    is_converted: bool = False
    """Whether it runs a copy of the model in a format that it reads."""


@dataclass(frozen=True, slots=True)
class EnginesHere:
    """The engines of this machine."""

    configured: EngineName
    installed: Collection[str]
    can_convert: bool = False
    """Whether there is a Python here that can convert checkpoints."""


def choose_engine(
    model: str, model_format: str, *, here: EnginesHere, loaded_with: str | None, entry: str | None
) -> EngineChoice:
    """The engine of a model in this format; a load asks for `loaded_with`, models.yaml says `entry`.

    Raises InvalidValue for an engine that cannot run it, EngineUnavailable where none here can.
    """
    for name, source in ((loaded_with, "the load asks for it"), (entry, "models.yaml says so")):
        if name is not None:
            return _named(model, model_format, name, source, here)
    if model_format in ENGINES[here.configured].formats:
        return EngineChoice(here.configured, f"the configured engine reads {model_format}")
    readers = _readers(model_format)
    for reader in readers:
        if reader in here.installed:
            return EngineChoice(reader, f"it is installed and reads {model_format}")
    for converter in _converters(model_format, here.configured):
        if here.can_convert:
            return EngineChoice(converter, f"no engine here reads {model_format}; it runs a copy", True)
    raise unavailable(model, model_format, readers)


def runners_of(model_format: str | None) -> tuple[EngineName, ...]:
    """Every engine that could run such a model, directly or converted; None is a format not known yet."""
    if model_format is None:
        return tuple(name for name, kind in ENGINES.items() if kind.formats)
    return tuple(name for name, kind in ENGINES.items() if model_format in (*kind.formats, *kind.converts))


def preferred_formats(configured: EngineName) -> tuple[str, ...]:
    """The formats of model files, those of the configured engine first."""
    others = (each for kind in ENGINES.values() for each in kind.formats)
    return tuple(dict.fromkeys((*ENGINES[configured].formats, *others)))


def unavailable(model: str, model_format: str, readers: tuple[EngineName, ...]) -> EngineUnavailable:
    """The error for a model that no installed engine reads."""
    return EngineUnavailable(
        f"{model} is in the format {model_format}, which no engine on this machine reads.",
        hint=f"Install one that does with {_install(readers)}, or take the model as a GGUF file.",
    )


def _named(model: str, model_format: str, name: str, source: str, here: EnginesHere) -> EngineChoice:
    runners = runners_of(model_format)
    if name not in runners:
        raise InvalidValue(
            f"The engine {name!r} does not run {model!r}, which is in the format {model_format}.",
            param="engine",
            hint=f"These can: {', '.join(runners)}." if runners else None,
        )
    engine = next(each for each in runners if each == name)
    if model_format in ENGINES[engine].formats:
        return EngineChoice(engine, source)
    if not here.can_convert:
        raise EngineUnavailable(
            f"{model} would have to be converted for {name}, and no Python here can do that.",
            hint="Converting takes torch and transformers: set engine.converter_python to a Python that has "
            f"them, or install an engine that brings them: {_install(_readers(model_format))}.",
        )
    return EngineChoice(engine, f"{source}; it runs a converted copy", True)


def _install(engines: tuple[EngineName, ...]) -> str:
    return " or ".join(f"`ganglion engines install {name}`" for name in engines)


def _readers(model_format: str) -> tuple[EngineName, ...]:
    return tuple(name for name, kind in ENGINES.items() if model_format in kind.formats)


def _converters(model_format: str, configured: EngineName) -> list[EngineName]:
    """Engines that a copy can be made for, the configured one first."""
    able = [name for name, kind in ENGINES.items() if model_format in kind.converts]
    return sorted(able, key=lambda name: name != configured)
