"""A model that could be loaded: its name, and how its engine is built."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ganglion.core.device_layout import DEFAULT_LAYOUT, DeviceLayout
from ganglion.core.engine import LoadOptions, ManagedEngine
from ganglion.core.errors import UnsupportedParameter
from ganglion.core.sampling import Sampling
from ganglion.registry.hub.download import Report


class _EngineBuild(Protocol):
    """Makes the engine without opening it; raises InsufficientMemory when it does not fit."""

    async def __call__(self, options: LoadOptions, *, free_bytes: int) -> ManagedEngine:
        """`free_bytes` is what the models that are already here leave."""


def _refuse_any_layout(options: LoadOptions) -> None:
    for param in options.layout.demands:
        raise UnsupportedParameter(f"The engine of this model does not support {param!r}.", param=param)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the registry knows of a model before anything is loaded."""

    id: str
    build: _EngineBuild
    fetch: Callable[[LoadOptions, Report], Awaitable[None]] | None = None
    """Sees to it that the file is here and whole, reporting from any thread; None where nothing is to do."""
    path: Path | None = None
    """The file, as `names.real_file` gives it, where it is known before it is fetched."""
    aliases: tuple[str, ...] = ()
    engine: str = ""
    """The one that a load takes unless it asks for another."""
    engines: tuple[str, ...] = ()
    """Those that a load may ask for."""
    origin: str = ""
    """Where its file is, for people."""
    reason: str = ""
    """Why its name means it, for people."""
    context_length: int = 0
    created_s: int = 0
    capabilities: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    """Its own defaults, where its file is here to say them."""
    is_pinned: bool = False
    priority: int = 0
    keep_alive_s: float | None = None
    """How long it stays loaded without a request; None is for ever."""
    layout: DeviceLayout = DEFAULT_LAYOUT
    """How it is laid over devices where a load does not say."""
    check: Callable[[LoadOptions], None] = _refuse_any_layout
    """Raises for options that its engine or this machine cannot honour, before any load; may block."""


def build_without_options(make: Callable[[], ManagedEngine]) -> _EngineBuild:
    """The build of an engine that takes no memory to speak of and no options."""

    async def build(options: LoadOptions, *, free_bytes: int) -> ManagedEngine:
        return make()

    return build
