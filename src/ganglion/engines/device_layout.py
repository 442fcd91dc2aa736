"""Carries a device layout into an engine's settings, or refuses by name what the engine does not honour."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from ganglion.core.device_layout import DeviceLayout, normalized_devices
from ganglion.core.errors import UnsupportedParameter
from ganglion.engines.table import ENGINES, EngineName, engines_that_honour

if TYPE_CHECKING:
    from ganglion.engines.settings import EngineSettings

_DEVICES: Final = "devices"


def refuse_unhonoured(engine: str, layout: DeviceLayout, *, under: str = "") -> None:
    """Raise UnsupportedParameter for the first field that the engine does not honour.

    `under` is written before the field's name, for one that stands in a file.
    """
    kind = next((kind for name, kind in ENGINES.items() if name == engine), None)
    honoured = () if kind is None else kind.layout
    for name in layout.demands:
        if name not in honoured:
            able = engines_that_honour(name)
            raise UnsupportedParameter(
                f"The engine {engine!r} does not support {under + name!r}.",
                param=under + name,
                hint=f"These do: {', '.join(able)}." if able else None,
            )


def refuse_where_none_honours(engines: Sequence[str], layout: DeviceLayout, *, under: str = "") -> None:
    """Raise UnsupportedParameter where none of some engines honours a layout; the first one says why."""
    errors = []
    for engine in engines:
        try:
            return refuse_unhonoured(engine, layout, under=under)
        except UnsupportedParameter as error:
            errors.append(error)
    if errors:
        raise errors[0]


def configured_layout(settings: "EngineSettings", engine: EngineName) -> DeviceLayout:
    """What the configuration says for an engine; its devices are those that may be used."""
    kind = ENGINES[engine]
    section = getattr(settings, kind.layout_section) if kind.layout_section else settings
    values = {name: getattr(section, name) for name in kind.layout}
    values[_DEVICES] = normalized_devices(named) if (named := values.get(_DEVICES)) else None
    return DeviceLayout(**values)


def with_layout(settings: "EngineSettings", engine: EngineName, layout: DeviceLayout) -> "EngineSettings":
    """The settings with every chosen field of a layout that the engine honours."""
    kind = ENGINES[engine]
    chosen = {name: value for name in kind.layout if (value := getattr(layout, name)) is not None}
    if not chosen:
        return settings
    if not kind.layout_section:
        return structs.replace(settings, **chosen)
    section = structs.replace(getattr(settings, kind.layout_section), **chosen)
    return structs.replace(settings, **{kind.layout_section: section})


def memory_share(settings: "EngineSettings", engine: EngineName) -> float:
    """The share of each device's memory that an engine takes at once; 0 for one that takes what it needs."""
    section = ENGINES[engine].layout_section
    return float(getattr(getattr(settings, section), "gpu_memory_share", 0.0)) if section else 0.0
