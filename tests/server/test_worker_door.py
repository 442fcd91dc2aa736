"""What workers tell each other, over the socket on which they do."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ganglion.core.errors import InsufficientMemory, ModelNotFound
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.node import NodeSpec, NodeView, Replica
from ganglion.gateway.fleet.quarantine import LostRequest, Quarantine
from ganglion.gateway.following import Follower
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.server.gateway.unix_socket import serve_on_unix_socket
from ganglion.server.gateway.worker_door import WorkerDoor
from ganglion.server.gateway.worker_pages import merged
from ganglion.server.life.drain import Gate
from ganglion.server.settings import ServerSettings

A = NodeView(NodeSpec("a", "http://10.0.0.1:1", api_key="k", epoch=7), is_healthy=True)
B = NodeView(NodeSpec("b", "http://10.0.0.2:1"), is_healthy=True, digest=frozenset(("x", "y")))


class Leading:
    """A leader's part of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fleet = Fleet()
        self.quarantine = Quarantine()
        self.poked: list[str] = []
        self.loads: list[str] = []

    async def load(self, model: str) -> None:
        self.loads.append(model)
        await asyncio.sleep(0.05)
        if model == "large":
            raise InsufficientMemory("No room.", free_mb=1, required_mb=2)
        if model == "unknown":
            raise ModelNotFound(model)
        self.fleet.put(replace(A, replicas=(Replica(model, "loaded"),)))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def page() -> bytes:
            return b""

        door = WorkerDoor(self.fleet, self, Gate(8), self.quarantine, poke=self.poked.append, page=page)
        door.spread_poison()
        async with serve_on_unix_socket(door.app(), ServerSettings(), self.path):
            try:
                yield
            finally:
                door.close()


@asynccontextmanager
async def following(
    path: Path, quarantine: Quarantine | None = None
) -> AsyncIterator[tuple[Fleet, Follower]]:
    fleet, pools = Fleet(), ConnectionPools()
    leader = NodeSpec("leader", f"unix://{path}")
    follower = Follower(fleet, NodeClient(pools), leader, quarantine or Quarantine())
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(follower.pass_on())]
    try:
        yield fleet, follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await follower.close()
        pools.close()


async def until(is_so: Callable[[], bool]) -> None:
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < 5
        await asyncio.sleep(0.005)


async def test_a_follower_has_what_the_leader_has_and_keeps_what_did_not_change(tmp_path: Path) -> None:
    leading = Leading(tmp_path / "worker-0")
    leading.fleet.put(A)
    leading.fleet.put(B)
    async with leading.serving(), following(leading.path) as (fleet, follower):
        await follower.heard()
        assert fleet.nodes == {"a": A, "b": B}
        spec, unchanged = fleet.nodes["a"].spec, fleet.nodes["b"]
        leading.fleet.put(replace(A, replicas=(Replica("m", "loaded"),)))
        leading.fleet.learn("a", "there", "m")
        await until(lambda: bool(fleet.learned))
        assert fleet.nodes["a"].replicas[0].id == "m"
        assert fleet.nodes["a"].spec is spec
        assert fleet.nodes["b"] is unchanged
        leading.fleet.rest("b", is_resting=True)
        await until(lambda: fleet.resting == {"b"})
        assert not fleet.nodes["b"].takes_work
        leading.fleet.remove("a")
        await until(lambda: set(fleet.nodes) == {"b"})
        assert fleet.learned == {}


async def test_what_runs_on_a_node_is_given_up_by_followers_with_its_lease_and_not_when_it_leaves(
    tmp_path: Path,
) -> None:
    class Work:
        is_withdrawn = False
        last_heard_s = 0.0

        def withdraw(self) -> None:
            self.is_withdrawn = True

    leading = Leading(tmp_path / "worker-0")
    async with leading.serving(), following(leading.path) as (fleet, _):
        for end, is_withdrawn in ((leading.fleet.remove, False), (leading.fleet.lapse, True)):
            leading.fleet.put(A)
            await until(lambda: "a" in fleet.nodes)
            work = Work()
            fleet.begin("a", work)
            end("a")
            await until(lambda: "a" not in fleet.nodes)
            assert work.is_withdrawn is is_withdrawn
            fleet.end("a", work)
        assert not fleet.in_flight


async def test_the_last_word_of_a_leader_holds_until_another_speaks(tmp_path: Path) -> None:
    first, second = Leading(tmp_path / "worker-0"), Leading(tmp_path / "worker-0")
    first.fleet.put(A)
    second.fleet.put(B)
    async with following(first.path) as (fleet, follower):
        async with first.serving():
            await follower.heard()
        await asyncio.sleep(0.2)
        assert fleet.nodes == {"a": A}
        async with second.serving():
            await until(lambda: fleet.nodes == {"b": B})


async def test_however_many_ask_a_follower_the_leader_is_asked_once_and_seen_through(tmp_path: Path) -> None:
    leading = Leading(tmp_path / "worker-0")
    async with leading.serving(), following(leading.path) as (fleet, follower):
        await follower.heard()
        await asyncio.gather(*(follower.load("m") for _ in range(100)))
        assert leading.loads == ["m"]
        assert fleet.nodes["a"].replicas[0].id == "m", "who asked finds it"
        with pytest.raises(InsufficientMemory) as told:
            await follower.load("large")
        assert told.value.extras["required_mb"] == 2
        with pytest.raises(ModelNotFound):
            await follower.load("unknown")


async def test_a_load_that_is_asked_for_while_nobody_leads_waits_for_the_next_leader(tmp_path: Path) -> None:
    leading = Leading(tmp_path / "worker-0")
    async with following(leading.path) as (fleet, follower):
        asking = asyncio.create_task(follower.load("m"))
        await asyncio.sleep(0.15)
        async with leading.serving():
            await asking
            assert fleet.nodes["a"].replicas[0].id == "m"


async def test_who_was_not_reached_is_told_to_the_leader_but_not_each_time(
    tmp_path: Path,
) -> None:
    leading = Leading(tmp_path / "worker-0")
    leading.fleet.put(A)
    async with leading.serving(), following(leading.path) as (_, follower):
        await follower.heard()
        for _ in range(50):
            follower.poke("a")
            follower.poke("nobody")
            await asyncio.sleep(0.001)
        await until(lambda: len(leading.poked) > 1)
        assert set(leading.poked) == {"a"}
        assert len(leading.poked) < 6


async def test_a_request_that_one_worker_found_to_be_poison_is_refused_by_all(tmp_path: Path) -> None:
    leading = Leading(tmp_path / "worker-0")
    one, other = Quarantine(), Quarantine()
    async with leading.serving(), following(leading.path, one), following(leading.path, other):
        losses = [LostRequest(node, number + 1, number, is_alone=True) for number, node in enumerate("ab")]
        for loss in losses:
            one.blame(loss, "t", b"/p", b"first")
        await until(lambda: other.holds("t", b"/p", b"first"))
        assert leading.quarantine.holds("t", b"/p", b"first")
        for loss in losses:
            leading.quarantine.blame(loss, "t", b"/p", b"second")
        await until(lambda: one.holds("t", b"/p", b"second") and other.holds("t", b"/p", b"second"))
        assert not one.holds("t", b"/p", b"third")


def test_pages_of_workers_become_one_in_which_each_sample_says_whose_it_is() -> None:
    count, gauge = b"# HELP n_total N.\n# TYPE n_total counter\n", b"# HELP g G.\n# TYPE g gauge\n"
    first = count + b'n_total{a="}{ x"} 1.0\n' + gauge + b"g 2.0\n"
    second = gauge + b"g 3.0\n" + count + b'n_total{a="b"} 4.0\n'
    assert merged({1: second, 0: first}).decode().splitlines() == [
        "# HELP n_total N.",
        "# TYPE n_total counter",
        'n_total{worker="0",a="}{ x"} 1.0',
        'n_total{worker="1",a="b"} 4.0',
        "# HELP g G.",
        "# TYPE g gauge",
        'g{worker="0"} 2.0',
        'g{worker="1"} 3.0',
    ]
