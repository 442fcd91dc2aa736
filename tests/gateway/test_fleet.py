"""The fleet as one value that is replaced."""

from dataclasses import replace

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec, NodeView, Replica

A = NodeSpec("a", "http://a", max_in_flight=2, cool_down_after=2, cool_down_s=5.0)
B = NodeSpec("b", "http://b")


def test_a_moment_that_somebody_holds_never_changes() -> None:
    fleet = Fleet((A,))
    before = fleet.nodes
    fleet.add(B)
    fleet.put(NodeView(A, is_healthy=True))
    fleet.remove("a")
    assert before == {"a": NodeView(A)}
    assert fleet.nodes == {"b": NodeView(B)}


def test_a_node_that_is_added_again_keeps_what_is_known_of_it() -> None:
    fleet = Fleet((A,))
    view = NodeView(A, is_healthy=True, replicas=(Replica("m", "loaded"),), boot="one")
    fleet.put(view)
    renewed = replace(A, epoch=7)
    fleet.add(renewed)
    assert fleet.nodes["a"] == replace(view, spec=renewed)


def test_listeners_hear_each_change_once_and_no_word_that_was_said_before() -> None:
    fleet = Fleet((A,))
    heard = []
    leave = fleet.listen(lambda: heard.append(tuple(fleet.nodes.values())))
    view = NodeView(A, is_healthy=True, last_heard_s=1.0)
    fleet.put(view)
    fleet.put(view)
    fleet.put(replace(view, last_heard_s=2.0))
    assert fleet.nodes["a"].last_heard_s == 2.0
    assert len(heard) == 1
    fleet.remove("a")
    fleet.remove("a")
    assert heard == [(view,), ()]
    leave()
    fleet.add(B)
    assert len(heard) == 2


def test_a_listener_may_leave_while_it_is_told() -> None:
    fleet = Fleet()
    heard: list[str] = []
    leave = fleet.listen(lambda: (heard.append("first"), leave()))  # type: ignore[func-returns-value]
    fleet.listen(lambda: heard.append("second"))
    fleet.add(A)
    fleet.add(B)
    assert heard == ["first", "second", "second"]


def test_failures_in_a_row_cool_a_node_down_for_its_time_and_one_answer_ends_that() -> None:
    now_s = 100.0
    fleet = Fleet((A, B), clock=lambda: now_s)
    fleet.failed("a")
    fleet.succeeded("a")
    fleet.failed("a")
    assert not fleet.is_cooling("a")
    fleet.failed("a")
    assert fleet.is_cooling("a") and not fleet.is_cooling("b")
    now_s = 104.9
    assert fleet.is_cooling("a")
    now_s = 105.0
    assert not fleet.is_cooling("a")
    fleet.failed("a")
    assert fleet.is_cooling("a"), "one more failure after the pause is enough"
    fleet.succeeded("a")
    assert not fleet.is_cooling("a")


def test_a_node_that_left_and_came_back_starts_without_its_old_failures() -> None:
    fleet = Fleet((A,))
    fleet.failed("a")
    fleet.failed("a")
    fleet.remove("a")
    fleet.failed("a")
    fleet.add(A)
    assert not fleet.is_cooling("a")
    fleet.failed("a")
    assert not fleet.is_cooling("a")


def test_a_node_has_room_until_its_cap_and_without_one_always() -> None:
    fleet = Fleet((A, B))
    room = []
    for in_flight in range(4):
        fleet.in_flight["a"] = fleet.in_flight["b"] = in_flight
        room.append([fleet.has_room(fleet.nodes[name]) for name in "ab"])
    assert room == [[True, True], [True, True], [False, True], [False, True]]


def test_what_runs_on_a_node_that_left_is_still_counted() -> None:
    fleet = Fleet((A, B))
    fleet.in_flight["a"] += 2
    fleet.remove("a")
    fleet.in_flight["a"] -= 1
    fleet.add(A)
    assert fleet.in_flight["a"] == 1
    fleet.in_flight["b"] += 1
    fleet.in_flight["b"] -= 1
    fleet.remove("b")
    fleet.in_flight["b"] += 1  # chosen a moment before it left
    assert fleet.in_flight["b"] == 1
