"""Device layouts: what was asked, what leaving it out means, and what is no device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.device_layout import LAYOUT_FIELDS, MAX_DEVICES, DeviceLayout, normalized_devices
from ganglion.core.errors import InvalidValue

COUNTS = st.none() | st.integers(1, 9)
LAYOUTS = st.builds(
    DeviceLayout,
    COUNTS,
    COUNTS,
    COUNTS,
    st.none() | st.sets(st.integers(0, 7), min_size=1).map(normalized_devices),
    st.none() | st.sampled_from(["mp", "ray"]),
)


def test_what_every_engine_does_is_no_demand() -> None:
    assert DeviceLayout(1, 1, 1, None, "mp").demands == ()
    assert DeviceLayout(2, 1, None, ("0",), "ray").demands == ("tensor_parallel", "devices", "executor")
    assert DeviceLayout().ranks == DeviceLayout(1, 1, 1).ranks == 1
    assert (DeviceLayout(2, 3, 4).parts, DeviceLayout(2, 3, 4).ranks) == (6, 24)


@given(LAYOUTS, LAYOUTS)
def test_what_was_chosen_wins_field_by_field(first: DeviceLayout, second: DeviceLayout) -> None:
    both = first.over(second)
    for name in LAYOUT_FIELDS:
        mine = getattr(first, name)
        assert getattr(both, name) == (getattr(second, name) if mine is None else mine)
    assert first.differs_from(both) is None
    assert second.differs_from(both) is None or set(first.demands) | set(second.demands)


@pytest.mark.parametrize(
    ("asked", "held", "field"),
    [
        (DeviceLayout(), DeviceLayout(4), None),
        (DeviceLayout(1), DeviceLayout(), None),
        (DeviceLayout(executor="mp"), DeviceLayout(), None),
        (DeviceLayout(2), DeviceLayout(), "tensor_parallel"),
        (DeviceLayout(1), DeviceLayout(2), "tensor_parallel"),
        (DeviceLayout(devices=("0",)), DeviceLayout(devices=("1",)), "devices"),
        (DeviceLayout(executor="ray"), DeviceLayout(executor="mp"), "executor"),
    ],
)
def test_a_layout_differs_in_what_it_chose(
    asked: DeviceLayout, held: DeviceLayout, field: str | None
) -> None:
    assert asked.differs_from(held) == field


def test_devices_are_indices_however_they_are_written() -> None:
    assert normalized_devices([3, "cuda:1", "GPU:0", "10"]) == ("0", "1", "3", "10")
    assert len(normalized_devices(range(MAX_DEVICES))) == MAX_DEVICES


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [0, "cuda:0"],
        [-1],
        ["cpu"],
        [""],
        ["0,1"],
        ["GPU-5a0e"],
        ["\u0661"],
        [99999],
        [10**300],
        range(MAX_DEVICES + 1),
    ],
)
def test_what_is_no_device_is_refused(wrong: list[str | int]) -> None:
    with pytest.raises(InvalidValue, match="'devices'") as raised:
        normalized_devices(wrong)
    assert raised.value.param == "devices"
    assert len(raised.value.message) < 200
