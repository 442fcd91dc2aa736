"""Which devices a model is put on, and what is said where it cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.device_layout import DeviceLayout, normalized_devices
from ganglion.core.errors import InsufficientVideoMemory, InvalidValue
from ganglion.core.machine import CPU_INDEX, DeviceReading
from ganglion.registry.machine.device_choice import check_room, choose_devices, visible_cards


def cards(*free_mb: int, total_mb: int = 1000) -> tuple[DeviceReading, ...]:
    return tuple(
        DeviceReading(index, f"card {index}", total_mb - free, free) for index, free in enumerate(free_mb)
    )


def chosen(
    layout: DeviceLayout, *free_mb: int, allowed: tuple[str, ...] | None = None, cores: int = 4
) -> tuple[str, ...] | None:
    return choose_devices(layout, cards(*free_mb), allowed=allowed, cores=cores)


def refused(layout: DeviceLayout, *free_mb: int, allowed: tuple[str, ...] | None = None) -> InvalidValue:
    with pytest.raises(InvalidValue) as raised:
        chosen(layout, *free_mb, allowed=allowed)
    return raised.value


def test_the_freest_are_taken_where_nobody_named_any() -> None:
    assert chosen(DeviceLayout(), 5, 9, 7) == ("1",)
    assert chosen(DeviceLayout(2), 5, 9, 7) == ("1", "2")
    assert chosen(DeviceLayout(2, 1), 5, 5, 5) == ("0", "1")
    assert chosen(DeviceLayout(), 5, 9, 7, allowed=("0", "2")) == ("2",)
    assert chosen(DeviceLayout(2, devices=("0", "2")), 5, 9, 7) == ("0", "2")


@given(
    st.lists(st.integers(0, 1000), max_size=6),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.none() | st.sets(st.integers(0, 7), min_size=1, max_size=6).map(normalized_devices),
)
def test_as_many_as_it_takes_are_chosen_and_none_that_is_not_here(free_mb, counts, named) -> None:
    tensor, pipeline, data = counts
    layout = DeviceLayout(tensor, pipeline, data, named)
    here = {str(index) for index in range(len(free_mb))}
    is_possible = named is not None and set(named) <= here and len(named) == layout.ranks
    is_possible |= named is None and (layout.ranks <= len(here) or (not here and layout.ranks <= 4))
    try:
        devices = chosen(layout, *free_mb)
    except InvalidValue as error:
        assert not is_possible
        assert error.param in ("devices", "tensor_parallel", "pipeline_parallel", "data_parallel")
        return
    assert is_possible
    if not here:
        assert devices is None
        return
    assert devices is not None
    assert len(set(devices)) == layout.ranks
    assert set(devices) <= here
    if named is None:
        worst = min(free_mb[int(device)] for device in devices)
        assert all(free_mb[int(other)] <= worst for other in here - set(devices))


def test_what_this_machine_has_is_said() -> None:
    error = refused(DeviceLayout(devices=("0", "5")), 10, 10)
    assert (error.param, error.message) == (
        "devices",
        "There is no device 5 here; there are 0 (card 0), 1 (card 1).",
    )
    error = refused(DeviceLayout(2, 2), 10, 10)
    assert (error.param, error.message) == (
        "tensor_parallel",
        "tensor_parallel 2 x pipeline_parallel 2 takes 4 devices; there are 0 (card 0), 1 (card 1).",
    )
    assert "none that can be used" in refused(DeviceLayout(devices=("0",))).message
    assert "4 processor cores" in refused(DeviceLayout(8)).message
    assert "there are 1 (card 1)" in refused(DeviceLayout(2), 10, 10, allowed=("1",)).message
    assert "no device 0 here" in refused(DeviceLayout(devices=("0",)), 10, 10, allowed=("1",)).message
    error = refused(DeviceLayout(devices=("0", "1")), 10, 10)
    assert (error.param, error.hint) == ("devices", "Say tensor_parallel 2, or name fewer.")


def test_rays_cluster_chooses_and_nothing_of_this_machine_bounds_it() -> None:
    assert chosen(DeviceLayout(8, 4, executor="ray"), 10) is None
    assert refused(DeviceLayout(devices=("0",), executor="ray"), 10).param == "devices"
    assert refused(DeviceLayout(executor="ray"), 10, allowed=("0",)).param == "devices"


def test_a_device_without_room_is_named_with_what_it_lacks() -> None:
    here = cards(900, 300, 700)
    check_room(here, ("0", "2"), weights_bytes=1400 * 2**20, parts=2, memory_share=0.7)
    check_room(here, (), weights_bytes=2**40, parts=1, memory_share=1)
    for parts, share, required in ((1, 0.0, 1400), (2, 0.9, 900)):
        with pytest.raises(InsufficientVideoMemory) as raised:
            check_room(here, ("2",), weights_bytes=1400 * 2**20, parts=parts, memory_share=share)
        assert (raised.value.free_mb, raised.value.required_mb) == (700, required)
        assert "Device 2 (card 2)" in raised.value.message


@pytest.mark.parametrize(
    ("written", "seen"),
    [(None, 3), ("", 0), ("-1", 0), ("0,2", 2), ("2", 1), ("7", 0), ("GPU-5a0e,GPU-77", 3)],
)
def test_cards_that_the_environment_hides_are_not_there(written: str | None, seen: int) -> None:
    environment = {} if written is None else {"CUDA_VISIBLE_DEVICES": written}
    processor = DeviceReading(CPU_INDEX, "processor", 0, 10)
    assert len(visible_cards((*cards(1, 2, 3), processor), environment)) == seen
