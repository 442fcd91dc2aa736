"""Lays a model over this machine's devices: what was asked, in the settings that its engine is built with.

Law: devices that a load or models.yaml names are the ones that are used; those of the configuration are the
ones that models are put on, each on the freest of them.
"""

from collections.abc import Callable
from dataclasses import replace

from ganglion.core.device_layout import DeviceLayout
from ganglion.core.machine import DeviceReading
from ganglion.engines.device_layout import (
    configured_layout,
    memory_share,
    refuse_unhonoured,
    with_layout,
)
from ganglion.engines.resources import usable_cores
from ganglion.engines.settings import EngineSettings
from ganglion.engines.table import ENGINES, EngineName
from ganglion.registry.machine.device_choice import check_room, choose_devices

Cards = Callable[[], tuple[DeviceReading, ...]]
"""The accelerators as they are now; blocks on the driver."""


def planned_layout(settings: EngineSettings, engine: EngineName, entry: DeviceLayout) -> DeviceLayout:
    """How a model is laid out where a load says nothing: its entry, else the configuration."""
    return entry.over(replace(configured_layout(settings, engine), devices=None))


def check_layout(settings: EngineSettings, engine: EngineName, asked: DeviceLayout, cards: Cards) -> None:
    """Raise what the engine does not honour, or this machine cannot; free memory is not looked at."""
    refuse_unhonoured(engine, asked)
    _chosen(settings, engine, asked, cards())


def lay_out(
    settings: EngineSettings, engine: EngineName, asked: DeviceLayout, cards: Cards, *, weights_bytes: int
) -> EngineSettings:
    """The settings with the layout and the devices that were chosen; raises what is wrong or does not fit."""
    refuse_unhonoured(engine, asked)
    if not ENGINES[engine].layout:
        return settings
    there = cards()
    chosen = _chosen(settings, engine, asked, there)
    check_room(
        there,
        chosen.devices or (),
        weights_bytes=weights_bytes,
        parts=chosen.parts,
        memory_share=memory_share(settings, engine),
    )
    return with_layout(settings, engine, chosen)


def _chosen(
    settings: EngineSettings, engine: EngineName, asked: DeviceLayout, cards: tuple[DeviceReading, ...]
) -> DeviceLayout:
    layout = asked.over(planned_layout(settings, engine, DeviceLayout()))
    devices = choose_devices(
        layout,
        cards,
        allowed=configured_layout(settings, engine).devices,
        cores=usable_cores(),
    )
    return replace(layout, devices=devices)
