"""A node that is lost under a session, and the client library that goes on elsewhere."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from grpc_calls import Rpc, connected, trailers
from relaying import Relayed, relaying, view_of

from ganglion.client import AsyncClient, AsyncSession
from ganglion.core.errors import SessionNotFound, UpstreamUnavailable
from ganglion.wire.salience import salience_pb2 as pb
from support.ports import free_port

TEXT = "one two three four five six seven eight"
NODE = """
import asyncio
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine
from ganglion.server.life.serve import serve
from ganglion.server.settings import ServerSettings
tell = lambda address: print(address, flush=True)
asyncio.run(serve(EchoEngine(script=EchoScript(delay_s=0.02)), ServerSettings(port=0), on_rpc=tell))
"""


@dataclass(frozen=True)
class Node:
    """An echo in a process of its own."""

    name: str
    rpc: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(5)


@contextmanager
def three_nodes() -> Iterator[dict[str, Node]]:
    with ExitStack() as stack:
        running = []
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            running.append(process)
        yield {
            name: Node(name, process.stdout.readline().strip(), process)
            for name, process in zip("abc", running, strict=True)
        }


async def taught(nodes: dict[str, Node]) -> None:
    """An echo knows a word once it has read it: with a model's vocabulary every node knows all of them."""
    for node in nodes.values():
        async with connected(node.rpc) as rpc:
            await rpc.call("Tokenize", pb.TokenizeRequest(model="echo", text=TEXT))


def node_of(session: AsyncSession, nodes: dict[str, Node]) -> Node:
    assert session.id is not None
    return nodes[session.id.split("~")[0]]


async def test_a_node_killed_mid_stream_costs_one_typed_error_and_one_between_calls_none() -> None:
    with three_nodes() as nodes:
        await taught(nodes)
        views = [view_of(node.name, node.rpc, "echo") for node in nodes.values()]
        async with (
            relaying(views) as relayed,
            client_of(relayed) as client,
            client.session("echo") as session,
        ):
            stream = session.run([TEXT], max_tokens=8)
            told = 0
            with pytest.raises(UpstreamUnavailable):
                async for _ in stream:
                    told += 1
                    if told == 3:
                        first = node_of(session, nodes)
                        first.kill()
            assert 3 <= told < 8
            assert relayed.fleet.in_flight[first.name] == 0
            # The fleet has not heard of it yet: the relay finds another node by itself.
            answer = await session.run([TEXT], max_tokens=8).result()
            assert answer.text == TEXT
            second = node_of(session, nodes)
            assert second is not first

            second.kill()
            relayed.fleet.put(replace(relayed.fleet.nodes[second.name], is_healthy=False))
            handle, before = session.id, session.tokens
            # A session that went with its node is told again to another one, by whatever call comes first.
            assert await session.append(TEXT) > len(before)
            assert session.tokens[: len(before)] == before
            assert node_of(session, nodes) not in (first, second)
            again = await session.generate(max_tokens=1).result()
            assert again.done.prompt_tokens == session.length - 1

            async with connected(relayed.address) as rpc:
                for request in (
                    pb.GenerateRequest(session_id=handle),
                    pb.GenerateRequest(session_id=handle[:-1]),
                ):
                    refused = await rpc.refusal("Generate", request)
                    assert trailers(refused)["ganglion-code"] == "session_not_found"
                node_of(session, nodes).kill()
                away = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="echo"))
                assert (away.code().name, trailers(away)["ganglion-code"]) == (
                    "UNAVAILABLE",
                    "upstream_unavailable",
                )


async def test_a_session_of_a_node_that_left_restarted_or_is_unwell_is_not_found(serving) -> None:
    async with serving() as first, serving() as reborn:
        view = view_of("a", first.rpc, "echo")
        async with relaying([view]) as relayed, connected(relayed.address) as rpc:
            session_id = await rpc.opened()
            close = pb.CloseSessionRequest(session_id=session_id)
            generate = pb.GenerateRequest(session_id=session_id, append_tokens=[1])

            async def is_not_found() -> None:
                for method, request in (("Generate", generate), ("CloseSession", close)):
                    refused = await rpc.refusal(method, request)
                    assert refused.details() == SessionNotFound(session_id).message
                    assert trailers(refused)["ganglion-code"] == "session_not_found"

            relayed.fleet.put(replace(view, is_healthy=False))
            await is_not_found()
            relayed.fleet.remove("a")
            await is_not_found()
            relayed.fleet.put(view_of("a", reborn.rpc, "echo"))
            await is_not_found()
            relayed.fleet.put(view)
            await rpc.generate(session_id, append_tokens=[1])


async def test_a_node_that_leaves_the_fleet_finishes_what_runs_on_it(serving) -> None:
    async with (
        serving() as served,
        relaying([view_of("a", served.rpc, "echo")]) as relayed,
        connected(relayed.address) as rpc,
    ):
        session_id = await rpc.opened()
        call = rpc.begin(
            "Generate",
            pb.GenerateRequest(session_id=session_id, append_tokens=range(500), max_tokens=500),
        )
        await call.read()
        relayed.fleet.remove("a")
        told = 1
        async with asyncio.timeout(5):
            while (event := await call.read()).WhichOneof("event") != "done":
                told += 1
        assert (told, event.done.completion_tokens) == (500, 500)


@pytest.mark.parametrize("end", ["lapsed", "silent"])
async def test_a_node_that_is_given_up_ends_what_runs_on_it(serving, end: str) -> None:
    async with (
        serving() as served,
        relaying([view_of("a", served.rpc, "echo")]) as relayed,
        connected(relayed.address) as rpc,
    ):
        session_id = await rpc.opened()
        call = rpc.begin(
            "Generate",
            pb.GenerateRequest(session_id=session_id, append_tokens=range(500), max_tokens=100_000),
        )
        await call.read()
        if end == "lapsed":
            relayed.fleet.expire("a")
        else:
            relayed.fleet.put(replace(relayed.fleet.nodes["a"], is_healthy=False, is_silent=True))
        async with asyncio.timeout(5):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while True:
                    await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not any(relayed.fleet.in_flight.values())


async def test_a_node_that_starts_again_where_it_was_is_found_again(serving) -> None:
    port = free_port()
    async with (
        relaying([view_of("a", f"127.0.0.1:{port + 1}", "echo", cool_down_s=0)]) as relayed,
        connected(relayed.address) as rpc,
    ):
        ask = pb.OpenSessionRequest(model="echo")
        for _ in range(2):
            assert trailers(await rpc.refusal("OpenSession", ask))["ganglion-code"] == "upstream_unavailable"
            async with serving(port=port), asyncio.timeout(5):
                while not await is_open(rpc):  # noqa: ASYNC110 - a channel's back-off has no event
                    await asyncio.sleep(0.05)


async def is_open(rpc: Rpc) -> bool:
    try:
        return bool(await rpc.opened())
    except grpc.aio.AioRpcError as error:
        assert trailers(error)["ganglion-code"] == "upstream_unavailable"
        return False


def client_of(relayed: Relayed) -> AsyncClient:
    return AsyncClient(grpc_address=relayed.address, timeout_s=10)
