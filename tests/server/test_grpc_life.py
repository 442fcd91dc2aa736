"""The gRPC listener's life: its port, its certificate, and how it leaves."""

import asyncio
import socket
import time
from pathlib import Path

import grpc
import pytest
from grpc_calls import caller_of, connected, rest, trailers
from grpc_health.v1 import health_pb2

from ganglion.core.errors import LoadFailed
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.bind import StartRefused, grpc_port_of
from ganglion.server.grpc.listener import HEALTH
from ganglion.server.life.serve import serve
from ganglion.server.settings import ServerSettings
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.salience import salience_pb2 as pb
from support.ports import free_port

Code = grpc.StatusCode


def endless(delay_s: float = 0.02) -> EchoEngine:
    return EchoEngine(EchoSettings(), EchoScript(delay_s=delay_s, is_unbounded=True))


def request(session_id: str, max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=max_tokens)


async def test_a_drain_finishes_what_runs_refuses_what_comes_and_says_so(serving) -> None:
    async with serving(endless(), drain_timeout_s=10) as served, connected(served.rpc) as rpc:
        health = caller_of(rpc.channel, HEALTH.methods_by_name["Check"])
        watch = caller_of(rpc.channel, HEALTH.methods_by_name["Watch"])(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running = rpc.begin("Generate", request(await rpc.opened(), 60))
        await running.read()
        served.shutdown.ask()
        await asyncio.sleep(0.05)
        refused = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="echo"))
        assert (refused.code(), trailers(refused)["ganglion-code"]) == (Code.UNAVAILABLE, "shutting_down")
        assert trailers(refused)["retry-after"] == "15"
        answer = await health(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert len((await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions) == 1
        events = await rest(running)
        assert events[-1].done.completion_tokens == 60
        await asyncio.wait_for(served.ended, 5)


async def test_what_outlasts_the_drain_is_told_why_it_ends(serving) -> None:
    async with serving(endless(), drain_timeout_s=0.2) as served, connected(served.rpc) as rpc:
        running = rpc.begin("Generate", request(await rpc.opened(), 5000))
        await running.read()
        served.shutdown.ask()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await rest(running)
        assert (ended.value.code(), trailers(ended.value)["ganglion-code"]) == (
            Code.UNAVAILABLE,
            "shutting_down",
        )
        await asyncio.wait_for(served.ended, 5)


async def test_a_second_signal_does_not_wait(serving) -> None:
    async with serving(endless(), drain_timeout_s=60) as served, connected(served.rpc) as rpc:
        running = rpc.begin("Generate", request(await rpc.opened(), 5000))
        await running.read()
        served.shutdown.ask()
        await asyncio.sleep(0.05)
        began_s = time.monotonic()
        served.shutdown.ask()
        await asyncio.wait_for(served.ended, 3)
        assert time.monotonic() - began_s < 3
        with pytest.raises(grpc.aio.AioRpcError):
            await rest(running)


async def test_sessions_that_are_kept_come_back_with_what_was_told(serving, tmp_path: Path) -> None:
    sessions = SessionSettings(folder=tmp_path, keeps_on_drain=True)
    async with serving(endless(), sessions=sessions, drain_timeout_s=0.1) as served:
        async with connected(served.rpc) as rpc:
            session_id = await rpc.opened()
            running = rpc.begin("Generate", request(session_id, 5000))
            await running.read()
            served.shutdown.ask()
            told = 1
            with pytest.raises(grpc.aio.AioRpcError):
                while await running.read():
                    told += 1
        await asyncio.wait_for(served.ended, 5)
    async with serving(endless(), sessions=sessions) as served, connected(served.rpc) as rpc:
        [session] = (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
        assert session.session_id == session_id
        assert told + 1 <= session.total_tokens <= told + 2, "the last token may have been on its way"


async def test_health_is_not_serving_until_the_engine_is_open(serving) -> None:
    async with serving(EchoEngine(EchoSettings(open_delay_s=0.5))) as served, connected(served.rpc) as rpc:
        health = caller_of(rpc.channel, HEALTH.methods_by_name["Check"])
        statuses = health_pb2.HealthCheckResponse
        assert (await health(health_pb2.HealthCheckRequest())).status == statuses.NOT_SERVING
        await asyncio.sleep(0.7)
        assert (await health(health_pb2.HealthCheckRequest())).status == statuses.SERVING


def test_the_port_is_https_and_one_more_unless_told() -> None:
    assert grpc_port_of(ServerSettings(port=8080), 8080) == 8081
    assert grpc_port_of(ServerSettings(port=0), 40000) == 0
    assert grpc_port_of(ServerSettings(port=8080, grpc_port=9000), 8080) == 9000
    assert grpc_port_of(ServerSettings(port=8080, grpc_port=0), 8080) == 0


async def test_a_port_that_is_taken_is_told_with_the_flag_that_helps_and_gives_http_back() -> None:
    port = free_port() + 1
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for settings in (ServerSettings(port=port - 1), ServerSettings(port=0, grpc_port=port)):
            with pytest.raises(StartRefused, match=f"127.0.0.1:{port}") as refused:
                await serve(EchoEngine(), settings)
            assert "--grpc-port" in refused.value.hint
    with pytest.raises(StartRefused) as beyond:
        await serve(EchoEngine(), ServerSettings(port=65535))
    assert "--grpc-port" in beyond.value.hint


async def test_an_engine_that_cannot_open_gives_the_port_back() -> None:
    rpc: list[str] = []
    engine = EchoEngine(EchoSettings(open_error=LoadFailed("not a model"), open_delay_s=0.1))
    with pytest.raises(LoadFailed):
        await serve(engine, ServerSettings(port=0), on_rpc=rpc.append)
    host, _, port = rpc[0].rpartition(":")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((host, int(port)))


async def test_no_grpc_means_no_listener(serving) -> None:
    async with serving(has_grpc=False) as served:
        assert served.rpc == ""
        assert (await served.post()).status_code == 200


async def test_tls_is_https_own_and_nothing_passes_without_it(serving, certificate) -> None:
    path, key = certificate
    async with serving(tls_cert=str(path), tls_key=str(key), api_keys=("k",)) as served:
        credentials = grpc.ssl_channel_credentials(path.read_bytes())
        async with connected(served.rpc, "k", credentials) as rpc:
            assert await rpc.opened()
        async with connected(served.rpc, None, credentials) as rpc:
            refused = await rpc.refusal("ListSessions", pb.ListSessionsRequest())
            assert refused.code() is Code.UNAUTHENTICATED
        async with connected(served.rpc, "k") as plain:
            refused = await plain.refusal("ListSessions", pb.ListSessionsRequest())
            assert refused.code() is Code.UNAVAILABLE
