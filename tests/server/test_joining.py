"""How a node joins a gateway: its lease, what it refuses without one, and how it leaves."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import httpx
import pytest
from grpc_calls import connected

from ganglion.core.errors import InvalidValue, LeaseLost
from ganglion.server.bind import StartRefused
from ganglion.server.fleet_membership import Leases
from ganglion.server.life.joining import check_join, default_node_name, join_request
from ganglion.server.settings import JoinSettings, ServerSettings
from ganglion.wire.fleet import Join, Leave, parse_join, parse_leave
from ganglion.wire.salience import salience_pb2 as pb
from support.waiting import until


@dataclass
class Gateway:
    """As much of a gateway as a node that joins talks to."""

    url: str = ""
    lease_s: float = 30.0
    epoch: int = 7
    status: int = 200
    is_silent: bool = False
    keys: list[str] = field(default_factory=list)
    joins: list[Join] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    on_leave: Callable[[], Awaitable[None]] | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                if self.is_silent:
                    return
                self.keys.append(headers.get("authorization", ""))
                told = json.dumps(await self.tell(lines[0].split()[1], body)).encode()
                length = b"content-length: %d" % len(told)
                writer.write(b"HTTP/1.1 %d X\r\n%b\r\n\r\n%b" % (self.status, length, told))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def tell(self, path: str, body: bytes) -> object:
        if self.status != 200:
            return {"error": {"message": "That is not how it works."}}
        if path == "/fleet/leave":
            self.leaves.append(parse_leave(body))
            if self.on_leave is not None:
                await self.on_leave()
            return {}
        self.joins.append(parse_join(body))
        return {"name": self.joins[-1].name, "epoch": self.epoch, "lease_s": self.lease_s}


@asynccontextmanager
async def gateway(**fields: object) -> AsyncIterator[Gateway]:
    standing = Gateway(**fields)
    server = await asyncio.start_server(standing.answer, "127.0.0.1", 0)
    standing.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield standing
    finally:
        server.close()


async def epoch_of(served) -> int | None:
    return (await served.http.get("/fleet/state")).json()["epoch"]


async def until_epoch(served, epoch: int) -> None:
    async with asyncio.timeout(5):
        while await epoch_of(served) != epoch:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.005)


async def sent(served, epoch: object) -> httpx.Response:
    headers = {"x-ganglion-epoch": str(epoch)}
    return await served.http.post("/v1/chat/completions", json=served.chat(), headers=headers)


async def test_a_node_joins_says_where_it_is_and_renews_its_lease(serving, caplog) -> None:
    caplog.set_level("INFO", "ganglion.server")
    async with gateway(lease_s=0.6) as gate:
        join = JoinSettings((gate.url,), key="node-key", name="one")
        async with serving(join=join) as served:
            await until(lambda: len(gate.joins) >= 3)
            first, *others = gate.joins
            assert (first.name, first.url, first.grpc, first.epoch) == ("one", served.url, served.rpc, None)
            assert {(each.boot, each.epoch) for each in others} == {(first.boot, 7)}
            assert (await served.http.get("/fleet/state")).json()["boot"] == first.boot
            assert await epoch_of(served) == 7
            gate.epoch = 9
            await until(lambda: gate.joins[-1].epoch == 9)
            assert await epoch_of(served) == 9
        assert set(gate.keys) == {"bearer node-key"}
    assert caplog.text.count("joined the gateway") == 1
    assert "node-key" not in caplog.text


async def test_work_under_another_lease_is_refused_before_it_runs(serving) -> None:
    async with gateway() as gate, serving(join=JoinSettings((gate.url,))) as served:
        await until(lambda: bool(gate.joins))
        await until_epoch(served, 7)
        assert (await sent(served, 7)).status_code == 200
        assert (await served.post()).status_code == 200, "who knows of no lease is served as always"
        for epoch in (6, 8, "x", "", "9" * 30):
            refused = await sent(served, epoch)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), epoch
            assert refused.json()["error"]["code"] == "lease_lost"
        seen = await served.http.get("/fleet/state", headers={"x-ganglion-epoch": "6"})
        assert (seen.status_code, seen.json()["epoch"]) == (200, 7)
        page = (await served.http.get("/metrics")).text
        assert 'ganglion_requests_total{model="echo",outcome="stop"} 2.0' in page
        async with connected(served.rpc) as rpc:
            stale = (("x-ganglion-epoch", "6"),)
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await rpc.begin("OpenSession", pb.OpenSessionRequest(model="echo"), stale)
            assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
            assert dict(lost.value.trailing_metadata())["ganglion-code"] == "lease_lost"
            await rpc.begin("OpenSession", pb.OpenSessionRequest(model="echo"), (("x-ganglion-epoch", "7"),))


async def test_a_node_that_joins_nobody_knows_no_leases(serving) -> None:
    async with serving() as served:
        assert (await sent(served, 6)).status_code == 200


async def test_a_lease_that_cannot_be_renewed_is_over_and_the_next_one_is_another(serving, caplog) -> None:
    caplog.set_level("INFO", "ganglion.server")
    async with gateway(lease_s=0.5) as gate, serving(join=JoinSettings((gate.url,))) as served:
        await until(lambda: len(gate.joins) >= 2)
        gate.is_silent = True
        await asyncio.sleep(0.55)
        assert (await sent(served, 7)).status_code == 503
        assert await epoch_of(served) is None
        await until(lambda: "lost the lease" in caplog.text)
        gate.is_silent, gate.epoch = False, 8
        heard = len(gate.joins)
        await until(lambda: len(gate.joins) > heard)
        assert gate.joins[heard].epoch is None
        await until_epoch(served, 8)
        assert ((await sent(served, 7)).status_code, (await sent(served, 8)).status_code) == (503, 200)
    assert caplog.text.count("lost the lease") == 1
    assert caplog.text.count("joined the gateway") == 2
    assert "cannot join" not in caplog.text


async def test_on_leaving_the_gateway_hears_of_it_before_anything_is_refused(serving, caplog) -> None:
    caplog.set_level("INFO", "ganglion.server")
    statuses: list[int] = []
    async with gateway() as gate, serving(join=JoinSettings((gate.url,), name="one")) as served:
        await until_epoch(served, 7)

        async def work_that_was_on_its_way() -> None:
            statuses.append((await sent(served, 7)).status_code)

        gate.on_leave = work_that_was_on_its_way
        served.shutdown.ask()
        await served.ended
        assert [(left.name, left.epoch) for left in gate.leaves] == [("one", 7)]
        assert statuses == [200]
        assert len(gate.joins) == 1
    assert caplog.text.count("left the gateway") == 1


async def test_a_gateway_that_does_not_answer_holds_nobody_up(serving) -> None:
    async with gateway() as gate:
        async with serving(join=JoinSettings((gate.url,))) as served:
            await until_epoch(served, 7)
            gate.on_leave = asyncio.Event().wait
            began_s = time.monotonic()
            served.shutdown.ask()
            await until(lambda: bool(gate.leaves))
            assert (await served.post()).status_code == 200, "still in the middle of leaving"
        assert time.monotonic() - began_s < 1.5, "asked twice, it does not wait"


async def test_several_gateways_each_grant_their_own(serving) -> None:
    async with (
        gateway() as one,
        gateway(epoch=3) as two,
        serving(join=JoinSettings((one.url, two.url))) as served,
    ):
        async with asyncio.timeout(5):
            while any([(await sent(served, epoch)).status_code != 200 for epoch in (7, 3)]):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert [(await sent(served, epoch)).status_code for epoch in (7, 3, 4)] == [200, 200, 503]
        served.shutdown.ask()
        await served.ended
        assert [left.epoch for left in (*one.leaves, *two.leaves)] == [7, 3]


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "GANGLION_JOIN__KEY"), (403, "GANGLION_JOIN__KEY"), (409, "That is not how it works.")],
)
async def test_why_a_gateway_does_not_let_a_node_in_is_said_once(serving, caplog, status, words) -> None:
    async with (
        gateway(status=status) as gate,
        serving(join=JoinSettings((gate.url,), key="node-key")) as served,
    ):
        await until(lambda: len(gate.keys) >= 2)
        assert (await served.post()).status_code == 200, "direct clients are served"
        assert (await sent(served, 7)).status_code == 503
    assert caplog.text.count("cannot join") == 1
    assert words in caplog.text
    assert "node-key" not in caplog.text


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    now_s = 100.0
    leases = Leases(is_joining=True, clock=lambda: now_s)
    leases.hold("gateway", 7, until_s=110.0)
    now_s = 109.9
    leases.check(b"7")
    assert leases.epoch == leases.epoch_of("gateway") == 7
    now_s = 110.0
    with pytest.raises(LeaseLost):
        leases.check(b"7")
    assert leases.epoch is None


def test_a_node_is_called_by_its_host_and_port_and_reached_where_it_says() -> None:
    assert default_node_name("box.lan", 8080) == "box.lan-8080"
    assert default_node_name("a b/ü", 1) == "a-b---1"
    assert len(default_node_name("h" * 100, 65535)) == 64
    settings = ServerSettings(port=80, grpc_port=81)
    said = join_request(JoinSettings(advertise="http://box.lan:80/"), settings, "http://0.0.0.0:80", "b")
    assert (said.url, said.grpc) == ("http://box.lan:80", "box.lan:81")
    listening = join_request(JoinSettings(), ServerSettings(has_grpc=False), "http://[::1]:80", "b")
    assert (listening.url, listening.grpc) == ("http://[::1]:80", None)


@pytest.mark.parametrize(
    "wrong",
    [
        JoinSettings(("gateway.lan",)),
        JoinSettings(("http://g",), name="two words"),
        JoinSettings(("http://g",), name="n" * 65),
        JoinSettings(("http://g",), name="line\n"),
        JoinSettings(("http://g",), advertise="box:80"),
        JoinSettings(("http://g",), advertise="http://box/path"),
        JoinSettings(("http://g",) * 17),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(wrong: JoinSettings) -> None:
    with pytest.raises(InvalidValue):
        check_join(wrong, ServerSettings())


def test_a_node_that_listens_everywhere_must_say_where_it_is_reached() -> None:
    everywhere = ServerSettings(host="0.0.0.0", api_keys=("k",))
    with pytest.raises(StartRefused, match="cannot call"):
        check_join(JoinSettings(("http://g",)), everywhere)
    check_join(JoinSettings(("http://g",), advertise="http://box:80"), everywhere)
    check_join(JoinSettings(), everywhere)
