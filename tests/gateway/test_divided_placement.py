"""A model that is divided over devices: as many of one node as it takes, with room on each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_nodes import held, node, nodes

from ganglion.core.device_layout import LAYOUT_FIELDS
from ganglion.core.errors import InvalidValue
from ganglion.gateway.node import NodeView
from ganglion.gateway.placing.catalogue import CatalogueModel, parse_catalogue
from ganglion.gateway.placing.placement import (
    Infeasible,
    Placement,
    PlacementContext,
    place,
    placement_error,
    plan_placements,
)

VLLM = {"llama": (), "vllm": LAYOUT_FIELDS}


def model(**fields: object) -> CatalogueModel:
    return CatalogueModel(id="m", **fields)  # type: ignore[arg-type]


def put(wanted: CatalogueModel, *views: NodeView, at: PlacementContext | None = None) -> Placement:
    outcome = place(wanted, nodes(*views), at or PlacementContext())
    assert isinstance(outcome, Placement), outcome
    return outcome


def refused(wanted: CatalogueModel, *views: NodeView, at: PlacementContext | None = None) -> Infeasible:
    outcome = place(wanted, nodes(*views), at or PlacementContext())
    assert isinstance(outcome, Infeasible), outcome
    return outcome


def test_each_device_takes_an_equal_part() -> None:
    assert put(model(tensor_parallel=2, memory_mb=8000), node("a", free_mb=(4000, 4000))).devices == (0, 1)
    short = refused(model(tensor_parallel=2, memory_mb=8000), node("a", free_mb=(9000, 3999)))
    assert short.reasons["a"] == "needs 4,000 MB on each of 2 devices, has 2: 9,000, 3,999 free"
    assert put(model(tensor_parallel=2, device_mb=4000), node("a", free_mb=(9000, 4000, 5000))).devices == (
        0,
        2,
    )
    kept = refused(model(tensor_parallel=2, device_mb=4000, min_free_mb=1), node("a", free_mb=(4000, 9000)))
    assert "4,000 MB and 1 kept free on each of 2" in kept.words


def test_groups_and_copies_take_devices_too() -> None:
    views = node("a", free_mb=(4000,) * 8)
    assert len(put(model(tensor_parallel=2, pipeline_parallel=3, memory_mb=24000), views).devices) == 6
    copies = model(tensor_parallel=2, data_parallel=4, memory_mb=8000)
    assert len(put(copies, views).devices) == 8
    assert refused(copies, node("b", free_mb=(4000,) * 7)).required_mb == 32000


def test_devices_of_two_nodes_are_never_put_together_and_a_processor_is_none() -> None:
    split = model(tensor_parallel=2, memory_mb=2000)
    assert refused(split, node("a", free_mb=(9000,)), node("b", free_mb=(9000,))).lacks_memory
    assert put(split, node("a", free_mb=(90000,)), node("b", free_mb=(1000, 1000))).node == "b"
    with_processor = node("c", free_mb=(9000,))
    processor = with_processor.devices[0]
    both = replace(with_processor, devices=(processor, replace(processor, index=-1)))
    assert "has 1: 9,000 free" in refused(split, both).words


def test_memory_that_nobody_knows_needs_as_many_devices_with_anything_free() -> None:
    assert put(model(tensor_parallel=2), node("a", free_mb=(1, 1, 0))).devices == (0, 1)
    assert (
        "needs room on each of 2 devices"
        in refused(model(tensor_parallel=2), node("a", free_mb=(9, 0))).words
    )


def test_who_leaves_makes_room_where_it_is_missing() -> None:
    replicas = held("x", memory_mb=3000, devices=("1",)), held("y", memory_mb=5000, devices=("2",))
    views = node("a", *replicas, free_mb=(4000, 1000, 500))
    assert put(model(tensor_parallel=2, memory_mb=8000), views).evictions == ("x",)
    assert put(model(tensor_parallel=3, memory_mb=12000), views).evictions == ("x", "y")
    over_both = node("a", held("z", memory_mb=6000, devices=("0", "1")), free_mb=(1000, 1000))
    assert put(model(tensor_parallel=2, memory_mb=8000), over_both).evictions == ("z",)


def test_what_was_promised_counts_on_the_devices_it_was_promised_on() -> None:
    views = node("a", free_mb=(8000, 8000))
    at = PlacementContext(reserved_mb={("a", 0): 6000, ("a", 1): 6000})
    assert isinstance(place(model(memory_mb=7000), nodes(views), at), Infeasible)
    assert put(model(tensor_parallel=2, memory_mb=4000), views, at=at).devices == (0, 1)
    assert refused(model(tensor_parallel=2, memory_mb=4002), views, at=at).is_passing


def test_a_node_whose_engines_divide_nothing_is_not_chosen() -> None:
    split = model(tensor_parallel=2, memory_mb=2000)
    plain = node("plain", free_mb=(9000, 9000), engines={"echo": (), "llama": ()})
    assert refused(split, plain).reasons == {
        "plain": "none of its engines (echo, llama) supports tensor_parallel"
    }
    assert put(split, plain, node("able", free_mb=(2000, 2000), engines=VLLM)).node == "able"
    assert put(split, node("old", free_mb=(2000, 2000))).node == "old", "one that says nothing is tried"
    assert put(model(memory_mb=2000), plain).node == "plain"
    by_llama = model(tensor_parallel=2, memory_mb=2000, engine="llama")
    assert "none of its 'llama'" in refused(by_llama, node("able", free_mb=(9000, 9000), engines=VLLM)).words
    error = placement_error("m", refused(split, plain))
    assert (error.status, error.code) == (503, "model_unavailable")
    assert "tensor_parallel" in error.message


def test_what_lies_in_a_cluster_goes_to_its_node_whatever_that_has_itself() -> None:
    wide = model(
        executor="ray", tensor_parallel=8, pipeline_parallel=2, memory_mb=900_000, pinned_on=("head",)
    )
    head, other = node("head", free_mb=(10,)), node("other", free_mb=(99_000,) * 16)
    chosen = put(wide, other, head)
    assert (chosen.node, chosen.devices, chosen.evictions) == ("head", (), ())
    assert "pinned_on" in refused(wide, other).words


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3000), min_size=1, max_size=4),
            st.lists(
                st.tuples(st.integers(1, 3000), st.booleans(), st.sets(st.integers(0, 3), max_size=4)),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2000),
)
def test_there_is_room_on_each_device_and_only_idle_ones_leave(fleet, tensor, pipeline, device_mb) -> None:
    views = [
        node(
            f"n{at}",
            *(
                held(f"x{k}", memory_mb=mb, in_flight=busy, devices=tuple(map(str, sorted(on))))
                for k, (mb, busy, on) in enumerate(held_there)
            ),
            free_mb=tuple(free),
        )
        for at, (free, held_there) in enumerate(fleet)
    ]
    wanted = model(tensor_parallel=tensor, pipeline_parallel=pipeline, device_mb=device_mb)
    if not wanted.layout.demands:
        return
    outcome = place(wanted, nodes(*views), PlacementContext())

    def room(view: NodeView, leaving: set[str]) -> dict[int, int]:
        free = {device.index: device.free_mb for device in view.devices}
        for replica in view.replicas:
            if replica.id in leaving:
                on = [index for index in free if str(index) in replica.devices] or list(free)
                for index in on:
                    free[index] += replica.memory_mb // len(on)
        return free

    def fits(free: dict[int, int]) -> bool:
        return sum(mb >= device_mb for mb in free.values()) >= tensor * pipeline

    everyone = [{each.id for each in view.replicas if not each.in_flight} for view in views]
    possible = [fits(room(view, idle)) for view, idle in zip(views, everyone, strict=True)]
    assert isinstance(outcome, Placement) == any(possible)
    if isinstance(outcome, Infeasible):
        assert set(outcome.reasons) == {view.name for view in views}
        return
    view = nodes(*views)[outcome.node]
    leaving = set(outcome.evictions)
    assert not any(each.in_flight for each in view.replicas if each.id in leaving)
    assert len(set(outcome.devices)) == tensor * pipeline
    free = room(view, leaving)
    assert all(free[index] >= device_mb for index in outcome.devices)
    for spared in leaving:
        assert not fits(room(view, leaving - {spared})), "nobody leaves in vain"


def test_a_plan_puts_no_two_on_the_same_memory() -> None:
    catalogue = parse_catalogue(
        """
        [[models]]
        id = "wide"
        tensor_parallel = 2
        device_mb = 6000

        [[models]]
        id = "small"
        memory_mb = 3000
        priority = 1
        """
    )
    wide, small = plan_placements(catalogue, nodes(node("a", free_mb=(8000, 8000), engines=VLLM)))
    assert wide.is_feasible
    assert wide.required_mb == 12000
    assert not small.is_feasible


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ("tensor_parallel = 0", "tensor_parallel"),
        ("tensor_parallel = 65", "tensor_parallel"),
        ("tensor_parallel = 8\npipeline_parallel = 9", "pipeline_parallel"),
        ("tensor_parallel = 2\ndevices = 2", "devices"),
        ("memory_mb = 1\ndevice_mb = 1", "device_mb"),
        ("executor = 'ray'", "executor"),
        ("executor = 'slurm'", "executor"),
    ],
)
def test_a_layout_that_cannot_be_is_an_error_that_says_where(keys: str, param: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        parse_catalogue(f"[[models]]\nid = 'm'\n{keys}\n")
    assert param in (raised.value.param or "") + raised.value.message
    assert "model 'm'" in raised.value.message.lower() or "Model 'm'" in raised.value.message


def test_what_a_node_is_told_is_only_what_is_not_usual() -> None:
    assert model().layout.demands == ()
    assert model(tensor_parallel=2).layout.demands == ("tensor_parallel",)
    assert model(tensor_parallel=2).layout.pipeline_parallel is None
