"""Chooses the devices that a model is put on, from those that this machine has. Pure.

Law: what cannot be on this machine is refused with what the machine has (InvalidValue); what does not fit now
may fit later, and is InsufficientVideoMemory.
"""

from collections.abc import Iterable, Mapping, Sequence

from ganglion.core.device_layout import DeviceLayout
from ganglion.core.errors import InsufficientVideoMemory, InvalidValue
from ganglion.core.machine import DeviceReading

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_cards(
    readings: Iterable[DeviceReading], environment: Mapping[str, str]
) -> tuple[DeviceReading, ...]:
    """The accelerators that processes started here may use; a driver lists the hidden ones, too."""
    cards = tuple(reading for reading in readings if reading.index >= 0)
    written = environment.get(_VISIBLE)
    if written is None:
        return cards
    names = [name.strip() for name in written.split(",")]
    if names not in ([""], ["-1"]) and not all(name.isascii() and name.isdigit() for name in names):
        return cards  # ids of cards or of slices, which nothing here can match
    return tuple(card for card in cards if str(card.index) in names)


def choose_devices(
    layout: DeviceLayout,
    cards: Sequence[DeviceReading],
    *,
    allowed: tuple[str, ...] | None,
    cores: int,
) -> tuple[str, ...] | None:
    """The indices to use, the freest where nobody named any; None where there is nothing to choose.

    `allowed` are those that the configuration leaves to models.
    """
    if layout.executor == "ray":
        if layout.devices is not None or allowed is not None:
            raise InvalidValue(
                "With the executor 'ray' the cluster chooses the devices.",
                param="devices",
                hint="Leave 'devices' out: each host gives what `ray start --num-gpus` says.",
            )
        return None
    usable = [card for card in cards if allowed is None or str(card.index) in allowed]
    named = None if layout.devices is None else _named(layout.devices, usable)
    if named is None and not cards:
        _check_ranks(layout, cores, f"there are {cores} processor cores, and no other device")
        return None
    if named is not None and len(named) > layout.ranks:
        raise InvalidValue(
            f"{len(named)} devices are named, and {layout.in_words()} takes {layout.ranks}.",
            param="devices",
            hint=f"Say tensor_parallel {len(named)}, or name fewer.",
        )
    chosen = sorted(usable, key=_most_free)[: layout.ranks] if named is None else named
    _check_ranks(layout, len(chosen), _listed(usable if named is None else named))
    return tuple(str(index) for index in sorted(card.index for card in chosen))


def check_room(
    cards: Iterable[DeviceReading],
    devices: Iterable[str],
    *,
    weights_bytes: int,
    parts: int,
    memory_share: float,
) -> None:
    """Raise InsufficientVideoMemory where one of the chosen devices cannot hold its part.

    Each gives its share of the weights, and the share of its memory that the engine takes at once.
    """
    wanted = frozenset(devices)
    weights_mb = -(-weights_bytes // parts) >> 20
    for card in cards:
        if str(card.index) not in wanted:
            continue
        total_mb = card.memory_used_mb + card.memory_free_mb
        required_mb = max(weights_mb, int(total_mb * memory_share))
        if card.memory_free_mb < required_mb:
            raise InsufficientVideoMemory(
                f"Device {card.index} ({card.name}) must give {required_mb} MiB, and "
                f"{card.memory_free_mb} MiB are free.",
                free_mb=card.memory_free_mb,
                required_mb=required_mb,
                hint="Unload what lies there, lower gpu_memory_share, or divide the model further.",
            )


def _named(devices: Sequence[str], usable: Sequence[DeviceReading]) -> list[DeviceReading]:
    by_index = {str(card.index): card for card in usable}
    unknown = [device for device in devices if device not in by_index]
    if unknown:
        raise InvalidValue(
            f"There is no device {', '.join(unknown)} here; {_listed(usable)}.", param="devices"
        )
    return [by_index[device] for device in devices]


def _check_ranks(layout: DeviceLayout, most: int, there: str) -> None:
    if layout.ranks > most:
        raise InvalidValue(
            f"{layout.in_words()} takes {layout.ranks} devices; {there}.", param=layout.largest()
        )


def _most_free(card: DeviceReading) -> tuple[int, int]:
    return -card.memory_free_mb, card.index


def _listed(cards: Sequence[DeviceReading]) -> str:
    if not cards:
        return "there is none that can be used"
    return "there are " + ", ".join(f"{card.index} ({card.name})" for card in cards)
