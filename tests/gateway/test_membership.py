"""Leases: who holds a name, and that no two ever do, however messages are delayed, lost and overtaken."""

import asyncio
import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ganglion.core.errors import InvalidRequest, NotAllowed, Overloaded
from ganglion.gateway.fleet import membership as memberships
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.membership import NodeLeases, first_epoch
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.wire.fleet import Join, Lease, Leave
from support.examples import examples
from support.waiting import until

LEASE_S = 10.0
DELAYS_S = (0.0, 0.1, 4.0, 9.0)


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def joining(
    name: str = "n", host: str = "a", boot: str = "one", epoch: int | None = None, **fields: object
) -> Join:
    return Join(**{"name": name, "url": f"http://{host}:8080", "boot": boot, "epoch": epoch} | fields)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet((NodeSpec("declared", "http://d:8080"),))


@pytest.fixture
def membership(fleet: Fleet, clock: Clock) -> NodeLeases:
    return NodeLeases(fleet, first_epoch=100, lease_s=LEASE_S, node_key="the-fleet's", clock=clock)


def test_a_node_that_joins_is_in_the_fleet_under_its_epoch_and_with_the_gateways_key(
    membership: NodeLeases, fleet: Fleet
) -> None:
    lease = membership.join(joining(grpc="0.0.0.0:8081", url="http://a:8080/"))
    assert lease == Lease(name="n", epoch=100, lease_s=LEASE_S)
    assert fleet.nodes["n"].spec == NodeSpec(
        "n", "http://a:8080", api_key="the-fleet's", epoch=100, grpc="a:8081"
    )


def test_a_renewal_in_time_keeps_the_epoch_and_what_is_known_and_anything_else_gets_a_larger_one(
    membership: NodeLeases, fleet: Fleet, clock: Clock
) -> None:
    epoch = membership.join(joining()).epoch
    fleet.put(replace(fleet.nodes["n"], is_healthy=True, boot="one"))
    heard = []
    fleet.listen(lambda: heard.append(1))
    for _ in range(5):
        clock.now_s += LEASE_S - 0.1
        assert membership.join(joining(epoch=epoch)).epoch == epoch
    assert not heard
    assert membership.join(joining()).epoch == epoch + 1
    assert membership.join(joining(epoch=epoch)).epoch == epoch + 2
    assert membership.join(joining(epoch=10**6)).epoch == epoch + 3
    assert fleet.nodes["n"].is_healthy
    clock.now_s += LEASE_S
    assert membership.join(joining(epoch=epoch + 3)).epoch == epoch + 4
    assert not fleet.nodes["n"].is_healthy, "what was known of it is too old"


def test_a_lease_that_is_over_takes_the_node_out_of_the_fleet_and_not_a_moment_earlier(
    membership: NodeLeases, fleet: Fleet, clock: Clock
) -> None:
    membership.join(joining())
    clock.now_s += LEASE_S - 0.001
    membership.expire()
    assert "n" in fleet.nodes
    clock.now_s += 0.001
    membership.expire()
    assert set(fleet.nodes) == {"declared"}


def test_a_declared_nodes_name_cannot_be_taken(membership: NodeLeases, fleet: Fleet) -> None:
    before = fleet.nodes
    with pytest.raises(NotAllowed):
        membership.join(joining("declared"))
    assert not membership.leave(Leave(name="declared", epoch=0))
    assert fleet.nodes is before


@pytest.mark.parametrize(
    "other", [joining(host="b"), joining(boot="two"), joining(host="b", boot="two", epoch=100)]
)
def test_a_live_lease_keeps_its_name_against_another_node(
    membership: NodeLeases, fleet: Fleet, clock: Clock, other: Join
) -> None:
    membership.join(joining())
    clock.now_s += 4
    with pytest.raises(InvalidRequest) as refused:
        membership.join(other)
    assert refused.value.param == "name" and "6.0 s" in (refused.value.hint or "")
    assert fleet.nodes["n"].spec.url == "http://a:8080"
    clock.now_s += 6
    assert membership.join(other).epoch == 101


def test_a_node_that_crashed_comes_back_as_soon_as_it_was_heard_where_it_was(
    membership: NodeLeases, fleet: Fleet
) -> None:
    membership.join(joining())
    fleet.put(replace(fleet.nodes["n"], boot="two"))
    with pytest.raises(InvalidRequest):
        membership.join(joining(host="b", boot="two"))
    assert membership.join(joining(boot="two")).epoch == 101
    with pytest.raises(InvalidRequest):
        membership.join(joining(boot="one", epoch=100))


def test_leaving_takes_effect_at_once_and_only_under_the_epoch_that_is_held(
    membership: NodeLeases, fleet: Fleet
) -> None:
    epoch = membership.join(joining()).epoch
    assert not membership.leave(Leave(name="n", epoch=epoch - 1))
    assert "n" in fleet.nodes
    assert membership.leave(Leave(name="n", epoch=epoch))
    assert "n" not in fleet.nodes
    assert not membership.leave(Leave(name="n", epoch=epoch))
    assert membership.join(joining(host="b")).epoch == epoch + 1


@pytest.mark.parametrize(
    "wrong",
    [
        joining(boot=""),
        joining(boot="b" * 200),
        joining(url="http://a:99999"),
        joining(url="http://a:0"),
        joining(url="http://me@a"),
        joining(grpc="nowhere"),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(membership: NodeLeases, fleet: Fleet, wrong: Join) -> None:
    with pytest.raises(InvalidRequest):
        membership.join(wrong)
    assert set(fleet.nodes) == {"declared"}


def test_no_more_nodes_join_than_the_bound(membership: NodeLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memberships, "MAX_JOINED", 2)
    membership.join(joining("x"))
    epoch = membership.join(joining("y")).epoch
    with pytest.raises(Overloaded):
        membership.join(joining("z"))
    assert membership.join(joining("y", epoch=epoch)).epoch == epoch


def test_a_gateway_that_starts_later_begins_with_a_larger_epoch_than_any_before() -> None:
    assert first_epoch(1_800_000_000.9) + 10**6 < first_epoch(1_800_000_001.0)
    assert first_epoch(2**32) < 2**53  # as JSON's numbers carry it


async def test_leases_end_on_time_by_themselves() -> None:
    fleet = Fleet()
    membership = NodeLeases(fleet, first_epoch=0, lease_s=0.2)
    expiring = asyncio.create_task(membership.keep_expiring())
    ended_s: dict[str, float] = {}
    fleet.listen(lambda: [ended_s.setdefault(n, time.monotonic()) for n in joined_s if n not in fleet.nodes])
    joined_s: dict[str, float] = {}
    try:
        for name in ("x", "y", "z"):
            await asyncio.sleep(0.07)
            membership.join(joining(name))
            joined_s[name] = time.monotonic()
        await until(lambda: not fleet.nodes)
    finally:
        expiring.cancel()
        await asyncio.gather(expiring, return_exceptions=True)
    assert list(ended_s) == list(joined_s)
    assert all(ended_s[name] - began_s >= 0.19 for name, began_s in joined_s.items())


@dataclass
class Process:
    """A node as it must behave: it holds what it was granted, counted from when it asked."""

    host: str
    boot: str
    clock_off_s: float
    epoch: int = -1
    ends_s: float = 0.0
    """On its own clock."""
    is_alive: bool = True
    has_left: bool = False

    def holds(self, real_s: float) -> bool:
        return self.is_alive and not self.has_left and self.clock_off_s + real_s < self.ends_s

    def granted(self, lease: Lease, sent_s: float, real_s: float) -> None:
        if not self.is_alive or self.has_left or lease.epoch < self.epoch:
            return
        self.epoch = lease.epoch
        self.ends_s = max(self.ends_s, sent_s + lease.lease_s)


@dataclass
class Asking:
    sender: Process
    sent_s: float
    join: Join


@dataclass
class Answering:
    to: Process
    sent_s: float
    lease: Lease


@dataclass
class Work:
    host: str
    epoch: int


Message = Asking | Answering | Leave | Work


class Leases(RuleBasedStateMachine):
    """Two hosts want one name; messages are late, lost and out of order; processes start anew."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.fleet = Fleet()
        self.membership = NodeLeases(self.fleet, first_epoch=7, lease_s=LEASE_S, clock=self.clock)
        self.processes = {"a": Process("a", "a0", -500.0), "b": Process("b", "b0", 10_000.0)}
        self.every = list(self.processes.values())
        self.on_the_way: list[Message] = []
        self.granted: dict[int, str] = {}

    @property
    def real_s(self) -> float:
        return self.clock.now_s

    @rule(by_s=st.sampled_from([0.1, 1.0, 3.0, 7.0, LEASE_S]))
    def time_passes(self, by_s: float) -> None:
        self.clock.now_s += by_s

    @rule()
    def leases_end(self) -> None:
        self.membership.expire()

    @rule(host=st.sampled_from("ab"))
    def a_node_asks(self, host: str) -> None:
        sender = self.processes[host]
        if not sender.has_left:
            epoch = sender.epoch if sender.holds(self.real_s) else None
            join = joining(host=host, boot=sender.boot, epoch=epoch)
            self.on_the_way.append(Asking(sender, sender.clock_off_s + self.real_s, join))

    @rule(host=st.sampled_from("ab"))
    def a_node_leaves(self, host: str) -> None:
        sender = self.processes[host]
        if sender.epoch >= 0 and not sender.has_left:
            sender.has_left = True
            self.on_the_way.append(Leave(name="n", epoch=sender.epoch))

    @rule(host=st.sampled_from("ab"))
    def a_process_starts_anew(self, host: str) -> None:
        old = self.processes[host]
        old.is_alive = False
        self.processes[host] = Process(host, f"{host}{len(self.every)}", old.clock_off_s)
        self.every.append(self.processes[host])

    @rule()
    def the_poller_hears_who_is_there(self) -> None:
        for view in self.fleet.nodes.values():
            self.fleet.put(replace(view, boot=self.processes[_host(view)].boot))

    @rule()
    def the_gateway_sends_work(self) -> None:
        for view in self.fleet.nodes.values():
            assert view.spec.epoch is not None
            self.on_the_way.append(Work(_host(view), view.spec.epoch))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), fate=st.sampled_from(["arrives", "arrives", "arrives", "arrives twice", "is lost"]))
    def a_message_ends_its_way(self, data: st.DataObject, fate: str) -> None:
        at = data.draw(st.integers(0, len(self.on_the_way) - 1))
        message = self.on_the_way[at] if fate == "arrives twice" else self.on_the_way.pop(at)
        if fate != "is lost":
            self.deliver(message)

    @rule(host=st.sampled_from("ab"), there_s=st.sampled_from(DELAYS_S), back_s=st.sampled_from(DELAYS_S))
    def a_node_asks_and_is_answered(self, host: str, there_s: float, back_s: float) -> None:
        others, self.on_the_way = self.on_the_way, []
        self.a_node_asks(host)
        for passes_s in (there_s, back_s):
            self.clock.now_s += passes_s
            for message in [self.on_the_way.pop() for _ in self.on_the_way[:]]:
                self.deliver(message)
        self.on_the_way = others

    def deliver(self, message: Message) -> None:
        match message:
            case Asking(sender, sent_s, join):
                try:
                    lease = self.membership.join(join)
                except InvalidRequest:
                    return
                holder = self.granted.setdefault(lease.epoch, join.boot)
                assert holder == join.boot, "an epoch is one process's for ever"
                assert lease.epoch == max(self.granted)
                self.on_the_way.append(Answering(sender, sent_s, lease))
            case Answering(to, sent_s, lease):
                to.granted(lease, sent_s, self.real_s)
            case Leave():
                self.membership.leave(message)
            case Work(host, epoch):
                worker = self.processes[host]
                if worker.holds(self.real_s) and worker.epoch == epoch:
                    assert self.granted[epoch] == worker.boot

    @invariant()
    def at_most_one_process_holds_the_name(self) -> None:
        holding = [process for process in self.every if process.holds(self.real_s)]
        assert len(holding) <= 1
        for process in holding:
            # The gateway has not given up on it before it has itself, and sends its work to nobody else.
            assert _host(self.fleet.nodes["n"]) == process.host

    def teardown(self) -> None:
        """Once messages arrive again, whoever wants the name has it when the lease before is over."""
        while self.on_the_way:
            message = self.on_the_way.pop()
            if not isinstance(message, Answering):
                self.deliver(message)
        self.a_process_starts_anew("a")
        wanting = self.processes["a"]
        for _ in range(5):
            self.a_node_asks("a")
            while self.on_the_way:
                self.deliver(self.on_the_way.pop(0))
            self.clock.now_s += LEASE_S / 4
        assert wanting.holds(self.real_s)
        assert self.fleet.nodes["n"].spec.epoch == wanting.epoch


def _host(view: NodeView) -> str:
    return view.spec.url.removeprefix("http://").removesuffix(":8080")


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=examples(150), stateful_step_count=30)


def test_who_joined_under_a_name_that_is_declared_now_gives_way_and_is_told(
    membership: NodeLeases, fleet: Fleet
) -> None:
    lease = membership.join(joining())
    membership.join(joining("other", "b"))
    membership.declare((NodeSpec("n", "http://d:8080"),))
    assert {name: view.spec.epoch for name, view in fleet.nodes.items()} == {"n": None, "other": 101}
    with pytest.raises(NotAllowed, match="declared"):
        membership.join(joining(epoch=lease.epoch))
    membership.declare(())
    assert set(fleet.nodes) == {"other"}
    assert membership.join(joining(epoch=lease.epoch)).epoch == 102


def test_a_declared_node_that_moved_is_known_no_longer_and_another_keeps_what_is_known(fleet: Fleet) -> None:
    stays, moves = NodeSpec("stays", "http://s:8080"), NodeSpec("moves", "http://m:8080")
    fleet.declare((stays, moves))
    for spec in (stays, moves):
        fleet.put(NodeView(spec, is_healthy=True, boot="one"))
    fleet.declare((replace(stays, max_in_flight=3), replace(moves, url="http://m:8081")))
    assert fleet.nodes["stays"] == NodeView(replace(stays, max_in_flight=3), is_healthy=True, boot="one")
    assert fleet.nodes["moves"] == NodeView(replace(moves, url="http://m:8081"))
