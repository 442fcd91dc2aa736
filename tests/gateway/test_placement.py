"""Where a model goes, who leaves for it, and why nowhere."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from made_nodes import held, node, nodes

from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.placement import (
    AlreadyHeld,
    Infeasible,
    Placement,
    PlacementContext,
    place,
    plan_placements,
)

NOW = PlacementContext()


def model(model_id: str = "m", memory_mb: int = 4000, **fields: object) -> CatalogueModel:
    return CatalogueModel(id=model_id, memory_mb=memory_mb, **fields)  # type: ignore[arg-type]


def put(wanted: CatalogueModel, *views: NodeView, at: PlacementContext = NOW) -> Placement:
    outcome = place(wanted, nodes(*views), at)
    assert isinstance(outcome, Placement), outcome
    return outcome


def refused(wanted: CatalogueModel, *views: NodeView, at: PlacementContext = NOW) -> Infeasible:
    outcome = place(wanted, nodes(*views), at)
    assert isinstance(outcome, Infeasible), outcome
    return outcome


def idle(model_id: str, memory_mb: int, last_used_s: float | None = None, **fields: object) -> Replica:
    return held(model_id, memory_mb=memory_mb, last_used_s=last_used_s, **fields)


def test_the_most_free_memory_wins_then_the_fewest_models_then_the_name() -> None:
    assert put(model(), node("a", free_mb=5000), node("b", free_mb=6000)).node == "b"
    assert put(model(), node("a", "x"), node("b")).node == "b"
    assert put(model(), node("b"), node("a")).node == "a"


def test_a_pinned_node_comes_first_even_if_somebody_must_leave_there() -> None:
    views = node("a", idle("x", 4000), free_mb=100), node("b")
    chosen = put(model(pinned_on=("a",)), *views)
    assert (chosen.node, chosen.evictions) == ("a", ("x",))
    assert "pinned there" in chosen.why
    assert put(model(pinned_on=("gone",)), *views).node == "b"


def test_a_free_place_is_better_than_one_that_must_be_made() -> None:
    chosen = put(model(), node("a", idle("x", 9000), free_mb=3999), node("b", free_mb=4000))
    assert (chosen.node, chosen.evictions) == ("b", ())


def test_what_must_stay_free_counts_on_each_device() -> None:
    assert put(model(min_free_mb=1000), node("a", free_mb=5000)).devices == (0,)
    assert "1,001 kept free" in refused(model(min_free_mb=1001), node("a", free_mb=5000)).words
    assert isinstance(refused(model(devices=2, min_free_mb=600), node("a", free_mb=(2500, 2500))), Infeasible)
    assert put(model(devices=2, min_free_mb=500), node("a", free_mb=(2500, 2500))).devices == (0, 1)


def test_a_model_is_split_only_over_as_many_devices_as_it_may_be() -> None:
    views = node("a", free_mb=(2000, 1500, 1500, 600))
    assert put(model(devices=3), views).devices == (0, 1, 2)
    assert put(model(devices=4, memory_mb=1900), views).devices == (0,)
    reason = refused(model(devices=2), views).reasons["a"]
    assert "needs 4,000 MB, 2,000 free on one device, 5,600 on 4, may use 2" in reason


def test_the_least_recently_used_leave_first_and_no_more_than_needed() -> None:
    views = node("a", idle("new", 3000, 9.0), idle("old", 1000, 1.0), idle("never", 500), free_mb=1000)
    assert put(model(memory_mb=1400), views).evictions == ("never",)
    assert put(model(memory_mb=2000), views).evictions == ("old",)
    assert put(model(memory_mb=4000), views).evictions == ("new",)
    assert put(model(memory_mb=5500), views).evictions == ("never", "old", "new")


def test_memory_on_a_device_is_given_back_there() -> None:
    replicas = idle("x", 3000, devices=("card 0",)), idle("y", 3000, 1.0, devices=("1",))
    assert put(model(), node("a", *replicas, free_mb=(500, 1500))).evictions == ("y",)
    both = node("a", *replicas, free_mb=(500, 500))
    assert isinstance(refused(model(), both), Infeasible)
    assert put(model(devices=2), both).evictions == ("x",)


def test_nobody_leaves_who_is_busy_pinned_more_urgent_or_needed() -> None:
    for replica in (
        idle("x", 4000, in_flight=1),
        idle("x", 4000, queued=1),
        idle("x", 4000, is_pinned=True),
        idle("x", 4000, priority=-1),
        idle("x", 4000, status="recovering"),
    ):
        assert refused(model(), node("a", replica, free_mb=0)).reasons
    for known in (model("x", pinned_on=("a",)), model("x", priority=-1), model("x", min_replicas=1)):
        at = PlacementContext(FleetCatalogue((known,)))
        assert refused(model(), node("a", idle("x", 4000), free_mb=0), at=at)
    at = PlacementContext(FleetCatalogue((model("x", min_replicas=1, max_replicas=2),)))
    assert put(model(), node("a", idle("x", 4000), free_mb=0), node("b", "x", free_mb=0), at=at).node == "a"
    assert put(model(priority=-1), node("a", idle("x", 4000), free_mb=0)).evictions == ("x",)
    at = PlacementContext(busy=frozenset({("a", "x")}))
    assert refused(model(), node("a", idle("x", 4000), free_mb=0), at=at).is_passing
    assert not refused(
        model(), node("a", idle("x", 4000), free_mb=0), at=replace(NOW, may_evict=False)
    ).is_passing


def test_what_is_busy_or_on_its_way_may_pass_and_what_is_pinned_does_not() -> None:
    assert refused(model(), node("a", idle("x", 4000, in_flight=1), free_mb=0)).is_passing
    assert refused(model(), node("a", held("x", "loading", memory_mb=4000), free_mb=4000)).is_passing
    assert refused(
        model(), node("a", free_mb=4000), at=PlacementContext(reserved_mb={("a", 0): 1})
    ).is_passing
    assert not refused(model(), node("a", idle("x", 4000, in_flight=1, is_pinned=True), free_mb=0)).is_passing
    assert not refused(model(), node("a", free_mb=3999)).is_passing


def test_every_node_has_its_reason() -> None:
    outcome = refused(
        model(),
        node("small", free_mb=2100),
        node("full", idle("x", 600), idle("y", 400), idle("z", 9000, in_flight=1), free_mb=2100),
        node("ill", is_healthy=False),
        node("leaving", is_draining=True),
        node("cloud", is_foreign=True),
        node("has", "m"),
        node("silent", free_mb=()),
    )
    assert outcome.reasons == {
        "small": "needs 4,000 MB, 2,100 free",
        "full": "needs 4,000 MB, 2,100 free, 1,000 more by evicting x, y, 9,000 more held by the busy z",
        "ill": "it is not healthy",
        "leaving": "it is draining",
        "cloud": "a foreign server loads nothing when asked",
        "has": "it has it already (loaded)",
        "silent": "it does not say how much memory it has",
    }
    assert (outcome.free_mb, outcome.required_mb, outcome.lacks_memory) == (2100, 4000, True)
    assert "and 4 more nodes" in outcome.words
    assert not refused(model(), node("ill", is_healthy=False)).lacks_memory


def test_memory_that_nobody_wrote_down_is_what_nodes_report() -> None:
    lists = node("a", held("m", "unloaded", memory_mb=5000), free_mb=3000)
    assert refused(model(memory_mb=0), lists, node("b", free_mb=4999)).required_mb == 5000
    assert put(model(memory_mb=0), lists, node("b", free_mb=5000)).node == "b"


def test_memory_that_nobody_knows_fits_anywhere_the_most_free_first() -> None:
    assert put(model(memory_mb=0), node("a", free_mb=10), node("b", free_mb=900)).node == "b"
    assert put(model(memory_mb=0), node("a", free_mb=())).node == "a"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3000), st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 1)), max_size=4)
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 6000),
)
def test_a_place_has_room_and_only_idle_ones_leave(fleet, memory_mb) -> None:
    views = [
        node(
            f"n{at}",
            *(idle(f"x{k}", mb, in_flight=busy) for k, (mb, busy) in enumerate(held_there)),
            free_mb=free,
        )
        for at, (free, held_there) in enumerate(fleet)
    ]
    outcome = place(model(memory_mb=memory_mb), nodes(*views), NOW)
    fits = [
        view.devices[0].free_mb + sum(each.memory_mb for each in view.replicas if not each.in_flight)
        >= memory_mb
        for view in views
    ]
    assert isinstance(outcome, Placement) == any(fits)
    if isinstance(outcome, Placement):
        view = nodes(*views)[outcome.node]
        leaving = [each for each in view.replicas if each.id in outcome.evictions]
        assert not any(each.in_flight for each in leaving)
        assert view.devices[0].free_mb + sum(each.memory_mb for each in leaving) >= memory_mb
        if leaving:
            assert all(view.devices[0].free_mb < memory_mb for view in views)
            smallest = min(each.memory_mb for each in leaving)
            assert view.devices[0].free_mb + sum(each.memory_mb for each in leaving) - smallest < memory_mb


def test_a_plan_gives_the_urgent_their_places_first_and_no_place_twice() -> None:
    catalogue = FleetCatalogue(
        (model("late", priority=5), model("first", priority=1), model("here"), model("vast", 99000))
    )
    planned = plan_placements(catalogue, nodes(node("a", "here", free_mb=5000), node("b", free_mb=3000)))
    assert [each.model.id for each in planned] == ["here", "vast", "first", "late"]
    here, vast, first, late = planned
    assert here.steps == (AlreadyHeld("a", "loaded"),)
    assert [step.node for step in first.steps if isinstance(step, Placement)] == ["a"]
    assert not vast.is_feasible
    assert not late.is_feasible


def test_a_plan_has_a_step_for_each_replica_that_is_asked_for() -> None:
    catalogue = FleetCatalogue((model(pinned_on=("b", "gone"), min_replicas=3, max_replicas=3),))
    [planned] = plan_placements(catalogue, nodes(node("a"), node("b"), node("c")))
    assert [step.node if isinstance(step, Placement) else step.reasons for step in planned.steps] == [
        "b",
        {"gone": "there is no such node"},
        "a",
    ]
