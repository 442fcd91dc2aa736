"""How a model is laid over devices, as it is asked for: counts, devices by index, executor.

Law: which of it an engine honours stands in `engines/table.py`; nothing that was asked for is ignored.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final, Literal

from ganglion.core.errors import InvalidValue

Executor = Literal["mp", "ray"]
"""Processes of one machine, or of all machines of a Ray cluster."""

MAX_WAYS: Final = 1024
"""More parts or copies of one model than anybody has devices."""
MAX_DEVICES: Final = 64
"""Devices of one machine that can be named."""
_DEVICE: Final = re.compile(r"(?:cuda:|gpu:)?([0-9]{1,4})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """Every field None where nobody chose; then it is one process on one device."""

    tensor_parallel: int | None = None
    """Devices that each layer is divided over."""
    pipeline_parallel: int | None = None
    """Groups of devices that the layers are divided over."""
    data_parallel: int | None = None
    """Copies of the model inside one engine."""
    devices: tuple[str, ...] | None = None
    """Indices of this machine's devices, as `normalized_devices` gives them."""
    executor: Executor | None = None

    def over(self, other: "DeviceLayout") -> "DeviceLayout":
        """These choices, and another's where there is none."""
        return DeviceLayout(
            *(
                getattr(other, name) if getattr(self, name) is None else getattr(self, name)
                for name in LAYOUT_FIELDS
            )
        )

    @property
    def demands(self) -> tuple[str, ...]:
        """The fields that ask for more than one process on any one device."""
        return tuple(name for name in LAYOUT_FIELDS if getattr(self, name) not in (None, _ALONE.get(name)))

    @property
    def parts(self) -> int:
        """Devices that one copy of the model is divided over."""
        return (self.tensor_parallel or 1) * (self.pipeline_parallel or 1)

    @property
    def ranks(self) -> int:
        """Devices that it takes, copies counted."""
        return self.parts * (self.data_parallel or 1)

    def in_words(self) -> str:
        """The counts that make up its ranks, for error messages."""
        counts = {name: getattr(self, name) or 1 for name in _COUNTS}
        written = [f"{name} {count}" for name, count in counts.items() if count > 1]
        return " x ".join(written) or "one device"

    def largest(self) -> str:
        """The field that asks for the most devices."""
        return max(_COUNTS, key=lambda name: getattr(self, name) or 1)

    def differs_from(self, other: "DeviceLayout") -> str | None:
        """A field chosen here that the other has otherwise; None where it has all of them."""
        for name in LAYOUT_FIELDS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and mine != (_ALONE.get(name) if theirs is None else theirs):
                return name
        return None


LAYOUT_FIELDS: Final = tuple(field.name for field in fields(DeviceLayout))
_COUNTS: Final = LAYOUT_FIELDS[:3]
_ALONE: Final = {**dict.fromkeys(_COUNTS, 1), "executor": "mp"}
"""What leaving a field out means; every engine honours it."""
DEFAULT_LAYOUT: Final = DeviceLayout()


def normalized_devices(names: Iterable[str | int], *, param: str = "devices") -> tuple[str, ...]:
    """Indices in ascending order, from numbers or names like `cuda:1`; raises InvalidValue."""
    indices = [_index(name, param) for name in names]
    if not indices:
        raise InvalidValue(
            f"Invalid value for {param!r}: no device is named.",
            param=param,
            hint="Leave it out to let one be chosen.",
        )
    if len(set(indices)) < len(indices):
        raise InvalidValue(f"Invalid value for {param!r}: a device is named twice.", param=param)
    if len(indices) > MAX_DEVICES:
        raise InvalidValue(f"Invalid value for {param!r}: at most {MAX_DEVICES} devices.", param=param)
    return tuple(map(str, sorted(indices)))


def _index(name: str | int, param: str) -> int:
    found = _DEVICE.fullmatch(str(name)[:64])
    if found is None:
        raise InvalidValue(
            f"Invalid value for {param!r}: {str(name)[:64]!r} is no device.",
            param=param,
            hint="A device is named by its index, as 0 or cuda:0; `ganglion doctor` lists them.",
        )
    return int(found[1])
