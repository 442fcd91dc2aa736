"""Nodes under watch: real echo nodes, and servers that lie, hang and vanish."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from byte_server import Handle, Line, answer, byte_server
from hypothesis import given
from hypothesis import strategies as st
from reporting_node import ReportingNode, listing, model, state

from ganglion.cli.system.this_machine import ThisMachine
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.fleet import probe
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.health import FleetHealthCheck, jittered
from ganglion.gateway.fleet.probe import PollSettings
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.server.settings import BuildInfo
from support.served import serving

QUICK = PollSettings(every_s=0.05, wait_s=0.5, timeout_s=0.3, gap_s=0.01, confirm_s=0.01, probe_gap_s=0.02)
REFUSING = answer(b"{}", status="500 Internal Server Error")


@dataclass
class Polled:
    """A poller at work, and every view that it told."""

    fleet: Fleet
    poller: FleetHealthCheck
    told: list[NodeView]

    async def until(
        self, holds: Callable[[NodeView], bool], name: str = "a", within_s: float = 5.0
    ) -> NodeView:
        """The first view that the fleet holds from now on of which this is true."""
        news = asyncio.Event()
        stop_listening = self.fleet.listen(news.set)
        try:
            async with asyncio.timeout(within_s):
                while not (name in self.fleet.nodes and holds(self.fleet.nodes[name])):
                    news.clear()
                    await news.wait()
        finally:
            stop_listening()
        return self.fleet.nodes[name]


@asynccontextmanager
async def polling(*specs: NodeSpec, settings: PollSettings = QUICK) -> AsyncIterator[Polled]:
    pools = ConnectionPools()
    fleet = Fleet(specs)
    poller = FleetHealthCheck(fleet, NodeClient(pools), settings)
    told: list[NodeView] = []
    fleet.listen(
        lambda: told.extend(view for view in fleet.nodes.values() if view not in told[-len(specs) :])
    )
    running = asyncio.create_task(poller.run())
    try:
        yield Polled(fleet, poller, told)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        pools.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("watch")]


@asynccontextmanager
async def echo_node(port: int = 0, **fields: object) -> AsyncIterator[str]:
    """A whole node of ours in this process."""
    engine = EchoEngine(EchoSettings(aliases=("parrot",)))
    machine = ThisMachine().source()
    async with serving(engine, machine=machine, port=port, has_grpc=False, **fields) as node:
        yield node.url


def foreign(url: str, name: str = "a") -> NodeSpec:
    return NodeSpec(name, url, kind="openai")


def in_turn(*answers: bytes) -> Handle:
    """One answer after the other, over all connections, the last one for ever."""
    left = list(answers)

    async def handle(line: Line) -> None:
        while await line.asked():
            await line.say(left.pop(0) if len(left) > 1 else left[0])

    return handle


async def silent(line: Line) -> None:
    await line.until_cut()


async def test_a_real_node_is_found_with_its_models_its_version_and_its_key() -> None:
    build = BuildInfo(version="1.2.3")
    async with (
        echo_node(api_keys=("secret",), build=build) as url,
        polling(NodeSpec("a", url, api_key="secret")) as polled,
    ):
        view = await polled.until(lambda view: bool(view.version))
        assert view.takes_work and view.failures == 0 and view.error is None
        [replica] = view.replicas
        assert (replica.id, replica.aliases, replica.is_servable) == ("echo", ("parrot",), True)
        assert replica.context_length == 8192
        assert (view.version, view.grpc) == ("1.2.3", None)


async def test_a_node_that_wants_another_key_is_unhealthy_and_says_why() -> None:
    async with echo_node(api_keys=("secret",)) as url, polling(NodeSpec("a", url, api_key="guess")) as polled:
        view = await polled.until(lambda view: view.failures >= 3)
        assert not view.is_healthy
        assert view.error is not None and "401" in view.error and "guess" not in view.error


async def test_a_node_that_ends_is_unhealthy_at_once_and_healed_when_it_is_back() -> None:
    async with polling() as polled:
        async with echo_node() as url:
            port = int(url.rsplit(":", 1)[1])
            polled.fleet.add(NodeSpec("a", url))
            await polled.until(lambda view: bool(view.version))
        await polled.until(lambda view: view.failures >= 3 and not view.is_healthy)
        async with echo_node(port, build=BuildInfo(version="2")):
            view = await polled.until(lambda view: view.version == "2")
            assert view.is_healthy and view.failures == 0 and view.error is None


async def test_three_failures_in_a_row_make_a_node_unhealthy_and_one_success_heals_it() -> None:
    good = answer(listing("m"))
    told = [good, REFUSING, REFUSING, good, REFUSING, REFUSING, REFUSING, good]
    async with byte_server(in_turn(*told)) as server, polling(foreign(server.url)) as polled:
        await polled.until(lambda view: view.failures == 3)
        await polled.until(lambda view: view.is_healthy)
        assert [(view.failures, view.is_healthy) for view in polled.told] == [
            *((0, True), (1, True), (2, True), (0, True)),
            *((1, True), (2, True), (3, False), (0, True)),
        ]
        assert all(view.replicas for view in polled.told)


async def test_a_model_that_is_no_longer_listed_is_gone() -> None:
    told = [answer(listing("m", "n")), answer(listing("n")), answer(listing())]
    async with byte_server(in_turn(*told)) as server, polling(foreign(server.url + "/api/v1")) as polled:
        for names in (["m", "n"], ["n"], []):
            await polled.until(
                lambda view, names=names: [r.id for r in view.replicas] == names and view.is_healthy
            )
        assert server.lines[0].heads[0].startswith(b"GET /api/v1/models ")


async def test_news_of_a_node_are_heard_as_they_happen_and_what_it_is_once_a_start() -> None:
    node = ReportingNode(state(1, model("m", "loading"), digest=("x",)))
    patient = replace(QUICK, wait_s=10.0)
    async with byte_server(node) as server, polling(NodeSpec("a", server.url), settings=patient) as polled:
        view = await polled.until(lambda view: bool(view.version))
        assert (view.version, view.grpc) == ("9.9", "127.0.0.1:50051")
        assert not view.replicas[0].is_servable and view.digest == {"x"}
        for version in range(2, 6):
            began_s = time.monotonic()
            await node.tell(state(version, model("m", in_flight=version), digest=("x", "y")))
            view = await polled.until(lambda view, version=version: view.replicas[0].in_flight == version)
            assert time.monotonic() - began_s < 5.0, "half of a wait"
        assert view.replicas[0].is_servable and view.version == "9.9"
        await node.tell(state(1, model("n"), boot="two"))
        view = await polled.until(lambda view: view.boot == "two" and bool(view.version))
        assert [replica.id for replica in view.replicas] == ["n"] and not view.digest
    assert node.asked.count("/discovery") == 2
    assert node.asked[0] == "/fleet/state" and "/fleet/state?since=1&wait=10" in node.asked


async def test_a_restart_clears_what_was_held_against_the_process_before() -> None:
    node = ReportingNode(state(1))
    async with byte_server(node) as server, polling(NodeSpec("a", server.url, cool_down_after=1)) as polled:
        await polled.until(lambda view: view.boot == "one")
        polled.fleet.failed("a")
        assert polled.fleet.is_cooling("a")
        await node.tell(state(2))
        await asyncio.sleep(0.05)
        assert polled.fleet.is_cooling("a")
        await node.tell(state(1, boot="two"))
        await polled.until(lambda view: view.boot == "two")
        assert not polled.fleet.is_cooling("a")


async def test_a_node_that_hangs_delays_nobody_else_and_is_unhealthy_after_three_timeouts() -> None:
    quick = replace(QUICK, timeout_s=0.2)
    async with (
        byte_server(silent) as hanging,
        byte_server(in_turn(answer(listing("m")))) as lively,
        polling(NodeSpec("a", hanging.url), foreign(lively.url, "b"), settings=quick) as polled,
    ):
        await polled.until(lambda view: view.is_healthy, "b")
        assert polled.fleet.nodes["a"].failures == 0, "it is still being waited for"
        view = await polled.until(lambda view: view.failures == 3)
        assert not view.is_healthy and view.error is not None and "deadline" in view.error
        assert len(lively.lines[0].heads) >= 4


async def test_a_bad_health_alone_makes_nothing_unhealthy() -> None:
    async def handle(line: Line) -> None:
        while first := await line.asked():
            if " /models " in first:
                await line.say(answer(b'[{"id": "m", "status": "loaded"}]'))
            else:
                await line.say(answer(b"", status="404 Not Found") if "/fleet/" in first else REFUSING)

    async with byte_server(handle) as server, polling(NodeSpec("a", server.url)) as polled:
        await polled.until(lambda view: view.is_healthy)
        await asyncio.sleep(0.2)
        assert {(view.is_healthy, view.failures) for view in polled.told} == {(True, 0)}


@pytest.mark.parametrize(
    "lie",
    [
        answer(b"not json"),
        answer(b'{"boot": 5}'),
        answer(b'{"data": {"id": "m"}}'),
        answer(b"[" * 50_000),
        answer(listing(*map(str, range(5000)))),
        answer(listing("m" * 600)),
        answer(b" " * 300_000),
        answer(b"", status="302 Found", headers=b"location: http://127.0.0.1:1/\r\n"),
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nmore",
        b"nonsense\r\n\r\n",
    ],
    ids=range(10),
)
@pytest.mark.parametrize("kind", ["ganglion", "openai"])
async def test_a_lie_is_a_failure_and_the_truth_after_it_is_heard(
    lie: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MAX_ANSWER_BYTES", 200_000)
    truth = answer(b'{"boot": "b", "version": 1, "status": "ok", "data": [{"id": "m"}]}')
    spec = "ganglion" if kind == "ganglion" else "openai"
    quick = replace(QUICK, timeout_s=0.1, every_s=0.02)
    async with (
        byte_server(in_turn(lie, truth)) as server,
        polling(NodeSpec("a", server.url, spec), settings=quick) as polled,
    ):
        await polled.until(lambda view: view.is_healthy)
        assert [(view.failures, view.is_healthy) for view in polled.told[:2]] == [(1, False), (0, True)]
        assert polled.told[0].error and len(polled.told[0].error) <= 300


async def test_a_poke_shows_a_closed_port_within_moments_however_slow_the_polls() -> None:
    slow = PollSettings(every_s=60.0)
    async with polling(settings=slow) as polled:
        async with byte_server(in_turn(answer(listing("m"), headers=b"connection: close\r\n"))) as server:
            polled.fleet.add(foreign(server.url))
            await polled.until(lambda view: view.is_healthy)
        began_s = time.monotonic()
        polled.poller.probe_now("a")
        polled.poller.probe_now("nobody")
        view = await polled.until(lambda view: not view.is_healthy)
        assert time.monotonic() - began_s < 30, "half the time between polls"
        assert view.failures == 3 and view.error is not None and "cannot be reached" in view.error


async def test_a_poke_does_not_wait_for_news_that_may_never_come() -> None:
    node = ReportingNode(state(1))
    slow = PollSettings(wait_s=60.0)
    async with byte_server(node) as server, polling(NodeSpec("a", server.url), settings=slow) as polled:
        await polled.until(lambda view: bool(view.version))
        await asyncio.sleep(0.2)
        assert node.asked[-1].endswith("wait=60")
        node.state = state(1, model("m"))  # and tells nobody
        polled.poller.probe_now("a")
        await polled.until(lambda view: bool(view.replicas))
        assert {view.failures for view in polled.told} == {0}


async def test_pokes_are_counted_as_one_when_they_come_close_together() -> None:
    calm = PollSettings(every_s=60.0, probe_gap_s=0.1)
    async with byte_server(in_turn(answer(listing("m")))) as server:
        async with polling(foreign(server.url), settings=calm) as polled:
            await polled.until(lambda view: view.is_healthy)
            until_s = time.monotonic() + 0.35
            while time.monotonic() < until_s:
                polled.poller.probe_now("a")
                await asyncio.sleep(0.005)
        assert 2 <= sum(len(line.heads) for line in server.lines) <= 5


async def test_nodes_that_come_are_watched_and_nodes_that_go_are_left_alone() -> None:
    async with (
        byte_server(in_turn(answer(listing("m")))) as one,
        byte_server(in_turn(answer(listing("n")))) as two,
        polling() as polled,
    ):
        polled.fleet.add(foreign(one.url))
        await polled.until(lambda view: view.is_healthy)
        polled.fleet.add(foreign(two.url))  # the same name, elsewhere
        await polled.until(lambda view: [replica.id for replica in view.replicas] == ["n"])
        polled.fleet.remove("a")
        polled.fleet.add(foreign(one.url))
        await polled.until(lambda view: [replica.id for replica in view.replicas] == ["m"])
        polled.fleet.remove("a")
        await asyncio.sleep(0.05)
        asked = sum(len(line.heads) for line in (*one.lines, *two.lines))
        await asyncio.sleep(0.15)
        assert sum(len(line.heads) for line in (*one.lines, *two.lines)) == asked
        assert not polled.fleet.nodes


async def test_an_answer_never_undoes_a_lease_that_was_renewed_meanwhile() -> None:
    node = ReportingNode(state(1))
    async with byte_server(node) as server, polling(NodeSpec("a", server.url, epoch=1)) as polled:
        await polled.until(lambda view: bool(view.version))
        polled.fleet.add(NodeSpec("a", server.url, epoch=2))
        await node.tell(state(2, model("m")))
        view = await polled.until(lambda view: bool(view.replicas))
        assert view.spec.epoch == 2


@given(st.floats(0.001, 100), st.floats(0, 1))
def test_jitter_is_a_fifth_at_most(pause_s: float, chance: float) -> None:
    assert 0.8 * pause_s - 1e-9 <= jittered(pause_s, chance) <= 1.2 * pause_s + 1e-9
    assert jittered(pause_s, 0.0) < pause_s < jittered(pause_s, 1.0)


async def test_polls_are_never_closer_than_the_jitter_allows() -> None:
    times_s: list[float] = []

    async def handle(line: Line) -> None:
        while await line.asked():
            times_s.append(time.monotonic())
            await line.say(answer(listing("m")))

    async with byte_server(handle) as server, polling(foreign(server.url)) as polled:
        await polled.until(lambda view: view.is_healthy)
        await asyncio.sleep(0.5)
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    assert len(gaps_s) >= 4
    assert min(gaps_s) >= 0.8 * QUICK.every_s - 0.005
