"""How many replicas there are: decided for a moment, and over simulated hours."""

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from made_nodes import held, node, nodes

from ganglion.core.errors import UpstreamUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.scaler import (
    PRESSED_S,
    REST_S,
    GrowModel,
    Scaler,
    ScalingAction,
    ScalingMemory,
    ShrinkModel,
    scale,
)


def model(model_id: str = "m", **fields: object) -> CatalogueModel:
    return CatalogueModel(id=model_id, memory_mb=1000, **fields)  # type: ignore[arg-type]


def watch(known: CatalogueModel, *views: NodeView, until_s: float) -> list[tuple[float, ScalingAction]]:
    """Every action while the fleet stays as it is."""
    memory: ScalingMemory = {}
    done = []
    for second in range(int(until_s) + 1):
        actions, memory = scale(nodes(*views), FleetCatalogue((known,)), {}, memory, float(second))
        done += [(float(second), action) for action in actions]
    return done


def first(known: CatalogueModel, *views: NodeView, until_s: float = 60) -> tuple[float, str, str] | None:
    done = watch(known, *views, until_s=until_s)
    return (done[0][0], type(done[0][1]).__name__, done[0][1].node) if done else None


def test_waiting_requests_bring_another_replica_once_they_have_waited() -> None:
    pressed = node("a", held("m", queued=5))
    assert first(model(max_replicas=2), pressed, node("b")) == (PRESSED_S, "GrowModel", "b")
    assert first(model(max_replicas=2), node("a", held("m", queued=4)), node("b")) is None
    assert first(model(max_replicas=1), pressed, node("b")) is None
    assert first(model(), pressed, node("b")) is None
    assert first(model(max_replicas=2, scale_up_queue=5), pressed, node("b")) is None
    both = node("a", held("m", queued=5)), node("b", held("m", queued=1))
    assert first(model(max_replicas=3), *both, node("c")) is None


def test_nobody_leaves_for_an_extra_replica() -> None:
    full = node("b", held("x", memory_mb=5000), free_mb=10)
    assert first(model(max_replicas=2), node("a", held("m", queued=9)), full) is None
    draining = node("b", is_draining=True)
    assert first(model(max_replicas=2), node("a", held("m", queued=9)), draining) is None


def test_while_one_is_coming_no_other_is_asked_for() -> None:
    coming = node("a", held("m", queued=99)), node("b", held("m", "loading")), node("c")
    assert first(model(max_replicas=3), *coming) is None


def test_the_fewest_and_the_pinned_are_loaded_unasked_whoever_leaves() -> None:
    full = node("b", held("x", memory_mb=5000), free_mb=10)
    assert first(model(min_replicas=1), full) == (0.0, "GrowModel", "b")
    assert first(model(min_replicas=2), node("a", "m"), full) == (0.0, "GrowModel", "b")
    assert first(model(pinned_on=("b",)), node("a", "m"), full) == (0.0, "GrowModel", "b")
    assert first(model(pinned_on=("gone",)), node("a", "m")) is None
    assert first(model(min_replicas=1, loadable=False), node("a")) is None
    busy = node("b", held("x", memory_mb=5000, in_flight=1), free_mb=10)
    assert first(model(min_replicas=1), busy) is None


def test_idle_replicas_go_down_to_the_fewest() -> None:
    a, b = node("a", "m"), node("b", "m")
    assert first(model(idle_s=20, max_replicas=2), a, b) == (20.0, "ShrinkModel", "a")
    assert first(model(idle_s=20, max_replicas=2, min_replicas=2), a, b) is None
    assert first(model(idle_s=20, max_replicas=2, pinned_on=("a",)), a, b) == (20.0, "ShrinkModel", "b")
    assert first(model(idle_s=20, min_replicas=1), a) is None
    assert first(model(idle_s=20), a) == (20.0, "ShrinkModel", "a")
    assert first(model(), a, b) is None
    assert first(model(idle_s=20), node("a", held("m", is_pinned=True))) is None
    assert first(model(idle_s=20), node("a", held("m", in_flight=1))) is None
    assert first(model(idle_s=20), node("a", held("m", "recovering"))) is None


def test_work_between_two_looks_counts() -> None:
    memory: ScalingMemory = {}
    for second in range(100):
        used = node("a", held("m", last_used_s=float(second // 15)))
        actions, memory = scale(nodes(used), FleetCatalogue((model(idle_s=20),)), {}, memory, float(second))
        assert not actions


def test_what_did_not_help_is_tried_again_only_after_a_rest() -> None:
    done = watch(model(max_replicas=3), node("a", held("m", queued=99)), node("b"), until_s=100)
    moments = [moment for moment, _ in done]
    assert moments[0] == PRESSED_S
    assert min(later - earlier for earlier, later in pairwise(moments)) >= REST_S


class Simulated:
    """A fleet of three nodes; replicas serve 10 requests a second each, and take 5 s to load."""

    def __init__(self, known: CatalogueModel) -> None:
        self.known = known
        self.memory: ScalingMemory = {}
        self.ready_s: dict[str, float] = {"a": 0.0}
        self.waiting = 0.0
        self.used_s = dict.fromkeys("abc", 0.0)
        self.replicas: list[int] = []
        self.changes: Counter[type] = Counter()

    def step(self, now_s: float, arriving: float) -> None:
        serving = [name for name, ready_s in self.ready_s.items() if ready_s <= now_s]
        self.waiting = max(0.0, self.waiting + arriving - 10 * len(serving))
        views = []
        for name in "abc":
            status = "loaded" if name in serving else "loading"
            share = int(self.waiting / max(1, len(serving))) if name in serving else 0
            if arriving and name in serving:
                self.used_s[name] = now_s
            replica = held("m", status, queued=share, in_flight=min(4, share), last_used_s=self.used_s[name])
            views.append(node(name, replica) if name in self.ready_s else node(name))
        actions, self.memory = scale(nodes(*views), FleetCatalogue((self.known,)), {}, self.memory, now_s)
        for action in actions:
            self.changes[type(action)] += 1
            if isinstance(action, GrowModel):
                self.ready_s[action.node] = now_s + 5
            else:
                del self.ready_s[action.node]
        self.replicas.append(len(self.ready_s))


def test_a_busy_hour_grows_the_model_and_a_quiet_one_shrinks_it() -> None:
    simulated = Simulated(model(min_replicas=1, max_replicas=3, idle_s=120))
    for second in range(3600):
        simulated.step(float(second), 25.0 if second < 1800 else 0.0)
    assert simulated.replicas[1700] == 3
    assert simulated.replicas[-1] == 1
    assert simulated.changes == {GrowModel: 2, ShrinkModel: 2}


def test_bursts_shorter_than_the_patience_change_nothing() -> None:
    simulated = Simulated(model(min_replicas=1, max_replicas=3, idle_s=120))
    for second in range(3600):
        simulated.step(float(second), 20.0 if second % 60 < 5 else 2.0)
    assert simulated.changes == {}


def test_load_that_swings_does_not_make_it_flap() -> None:
    simulated = Simulated(model(min_replicas=1, max_replicas=3, idle_s=120))
    for second in range(3600):
        simulated.step(float(second), 22.0 if second // 45 % 2 else 0.5)
    assert sum(simulated.changes.values()) <= 4


class Moving:
    """Does what it is told, and remembers."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.done: list[str] = []
        self.is_failing = False

    async def load_on(self, model: str, node: str) -> None:
        await asyncio.sleep(0.02)
        if self.is_failing:
            raise UpstreamUnavailable("It is gone.")
        self.done.append(f"load {model} on {node}")
        view = self.fleet.nodes[node]
        self.fleet.put(replace(view, replicas=(*view.replicas, held(model))))

    async def unload_from(self, model: str, node: str) -> None:
        self.done.append(f"unload {model} from {node}")


async def test_the_scaler_does_what_is_decided_one_change_at_a_time() -> None:
    now_s = [0.0]
    view = node("a")
    fleet = Fleet((view.spec,))
    fleet.put(view)
    mover = Moving(fleet)
    scaler = Scaler(
        fleet, FleetCatalogue((model(min_replicas=1),)), mover, clock=lambda: now_s[0], period_s=0.002
    )
    running = asyncio.create_task(scaler.run())
    await asyncio.sleep(0.01)
    now_s[0] = REST_S + 1  # the first load is still under way
    await asyncio.sleep(0.06)
    assert mover.done == ["load m on a"]
    scaler.catalogue = FleetCatalogue((model(idle_s=5),))
    now_s[0] += REST_S + 1
    await asyncio.sleep(0.02)
    now_s[0] += 6
    await asyncio.sleep(0.02)
    assert mover.done == ["load m on a", "unload m from a"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_change_that_fails_does_not_end_the_scaler() -> None:
    view = node("a")
    fleet = Fleet((view.spec,))
    fleet.put(view)
    mover = Moving(fleet)
    mover.is_failing = True
    now_s = [0.0]
    scaler = Scaler(
        fleet, FleetCatalogue((model(min_replicas=1),)), mover, clock=lambda: now_s[0], period_s=0.002
    )
    running = asyncio.create_task(scaler.run())
    await asyncio.sleep(0.05)
    mover.is_failing = False
    now_s[0] = REST_S + 1
    await asyncio.sleep(0.05)
    assert not running.done()
    assert mover.done == ["load m on a"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
