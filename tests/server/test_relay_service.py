"""Sessions through a gateway on real sockets, before nodes that echo."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest
from grpc_calls import Rpc, connected, rest, stream_of, trailers
from relaying import Keys, relaying, view_of

from ganglion.core.errors import RateLimited
from ganglion.core.events import Usage
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.access.admission import Identity
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.salience import salience_pb2 as pb
from support.waiting import until

Code = grpc.StatusCode
OPEN_END = 2**32 - 1


TURN = '{"messages": [{"role": "user", "content": "grün is"}]}'


def echo(model: str = "echo", **script: object) -> EchoEngine:
    return EchoEngine(
        EchoSettings(model, concepts=("calm", "joy"), readout_layers=(1, 2)),
        EchoScript(**script) if script else None,
    )


async def played(rpc: Rpc) -> AsyncIterator[bytes]:
    """A session's whole life as the bytes that come back, session ids and times taken out."""
    opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model="echo", ttl_s=60))
    session_id, opened.session_id = opened.session_id, ""
    yield opened.SerializeToString()
    tokenize = pb.TokenizeRequest(model="echo", text="grün is the colour of hope")
    tokens = (await rpc.call("Tokenize", tokenize)).tokens
    for offset, fields in (
        (0, {"append_tokens": tokens, "max_tokens": 3}),
        (9, {"max_tokens": 2, "logprobs_ranges": [pb.Range(start=2, end=OPEN_END)], "logprob_top_k": 2}),
        (11, {"append_tokens": tokens[:2], "logprobs_ranges": [pb.Range(start=11, end=13)]}),
        (13, {"max_tokens": 4, "stop": ["the"], "presence_penalty": 0.5}),
        (5, {"truncating": True, "max_tokens": 4, "readout_ranges": [pb.Range(start=3, end=OPEN_END)]}),
    ):
        for event in await rpc.generate(session_id, offset=offset, **fields):
            yield event.SerializeToString()
    forked = await rpc.call("ForkSession", pb.ForkSessionRequest(session_id=session_id, at=6))
    fork, forked.session_id = forked.session_id, ""
    yield forked.SerializeToString()
    for event in await rpc.generate(fork, offset=6, append_tokens=tokens, max_tokens=5):
        yield event.SerializeToString()
    image = pb.AppendImageRequest(session_id=fork, data=b"x" * 500, mime="image/png", offset=17)
    for method, request in (
        ("AppendImage", image),
        ("GetTokens", pb.GetTokensRequest(session_id=fork, offset=3, limit=9)),
        ("RenderMessages", pb.RenderMessagesRequest(model="echo", chat=TURN, preceding_tokens=tokens)),
        ("TruncateSession", pb.TruncateSessionRequest(session_id=session_id, length=2)),
        ("Detokenize", pb.DetokenizeRequest(model="echo", tokens=tokens)),
        ("GetReadoutManifest", pb.GetReadoutManifestRequest()),
        ("GetReadoutManifest", pb.GetReadoutManifestRequest(model="echo")),
    ):
        yield (await rpc.call(method, request)).SerializeToString()
    saved = await rest(rpc.begin("SaveSession", pb.SaveSessionRequest(session_id=fork)))
    for part in saved:
        yield part.data
    restored = await rpc.begin("RestoreSession", stream_of(saved))
    third, restored.session_id = restored.session_id, ""
    yield restored.SerializeToString()
    suspended = await rpc.call("SuspendSession", pb.SuspendSessionRequest(session_id=third))
    yield pb.SuspendSessionResponse(total_tokens=suspended.total_tokens).SerializeToString()
    listed = {
        info.session_id: info for info in (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
    }
    assert len(listed) == 3
    for each in (session_id, fork, third):
        listed[each].session_id, listed[each].idle_s = "", 0.0
        yield listed[each].SerializeToString()
        yield (await rpc.call("CloseSession", pb.CloseSessionRequest(session_id=each))).SerializeToString()
    for method, request in (
        ("CloseSession", pb.CloseSessionRequest(session_id="nobody")),
        ("Generate", pb.GenerateRequest()),
        ("OpenSession", pb.OpenSessionRequest(model="nobody")),
        ("RestoreSession", stream_of([pb.SessionBytes(data=b"not a session" * 9)])),
        ("RestoreSession", stream_of([])),
    ):
        error = await rpc.refusal(method, request)
        told = trailers(error)
        assert told.pop("x-request-id")
        told.pop("ganglion-hint", None)
        yield repr((error.code(), error.details(), told)).encode()


async def test_a_session_through_the_gateway_is_byte_for_byte_one_on_its_node(serving, tmp_path) -> None:
    async with AsyncExitStack() as stack:
        direct, behind = [
            await stack.enter_async_context(serving(echo(), sessions=SessionSettings(folder=tmp_path / name)))
            for name in ("direct", "behind")
        ]
        relayed = await stack.enter_async_context(relaying([view_of("a", behind.rpc, "echo")]))
        near = await stack.enter_async_context(connected(direct.rpc))
        far = await stack.enter_async_context(connected(relayed.address))
        expected = [data async for data in played(near)]
        assert [data async for data in played(far)] == expected
        assert len(expected) > 40
        assert relayed.fleet.in_flight == {"a": 0}


async def test_sessions_are_spread_and_each_stays_where_it_is_also_through_another_gateway(serving) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(serving(echo())) for _ in range(3)]
        views = [view_of(f"n{place}", node.rpc, "echo") for place, node in enumerate(nodes)]
        first = await stack.enter_async_context(relaying(views))
        second = await stack.enter_async_context(
            relaying([replace(view, last_heard_s=None, is_healthy=False) for view in views])
        )
        other = await stack.enter_async_context(relaying(views, secret=b"another fleet's"))
        one, two, three = [
            await stack.enter_async_context(connected(each.address)) for each in (first, second, other)
        ]
        running = [one.begin("OpenSession", pb.OpenSessionRequest(model="echo")) for _ in range(9)]
        ids = [(await each).session_id for each in running]
        assert Counter(each.split("~")[0] for each in ids).keys() == {"n0", "n1", "n2"}
        for each in ids:
            await one.generate(each, append_tokens=[1, 2])
            *_, done = await two.generate(each, offset=2, append_tokens=[3], max_tokens=1)
            assert done.done.total_tokens == 4
            refused = await three.refusal("CloseSession", pb.CloseSessionRequest(session_id=each))
            assert trailers(refused)["ganglion-code"] == "session_not_found"


async def test_a_listing_leaves_out_who_does_not_answer(serving, monkeypatch) -> None:
    monkeypatch.setattr("ganglion.server.gateway.relay.session_directory.LIST_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with serving(echo()) as served:
            views = [
                view_of("a", served.rpc, "echo"),
                view_of("b", f"127.0.0.1:{silent.getsockname()[1]}"),
                view_of("c", "127.0.0.1:1"),
                view_of("d", "127.0.0.1:1", kind="openai", wires=frozenset(("chat",))),
            ]
            async with relaying(views) as relayed, connected(relayed.address) as rpc:
                session_id = await rpc.opened()
                listed = await rpc.call("ListSessions", pb.ListSessionsRequest())
                assert [info.session_id for info in listed.sessions] == [session_id]
                assert set(relayed.fleet.in_flight.values()) == {0}


async def test_a_saved_session_goes_to_a_node_that_holds_its_model(serving) -> None:
    async with serving(echo()) as one, serving(echo("parrot")) as other:
        views = [view_of("a", one.rpc, "echo"), view_of("b", other.rpc, "parrot")]
        async with relaying(views) as relayed, connected(relayed.address) as rpc:
            opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model="parrot"))
            await rpc.generate(opened.session_id, append_tokens=[1, 2, 3])
            saved = await rest(rpc.begin("SaveSession", pb.SaveSessionRequest(session_id=opened.session_id)))
            data = b"".join(part.data for part in saved)
            crumbs = [pb.SessionBytes(data=data[at : at + 7]) for at in range(0, len(data), 7)]
            restored = await rpc.begin("RestoreSession", stream_of(crumbs))
            assert (restored.session_id.split("~")[0], restored.model, restored.total_tokens) == (
                "b",
                "parrot",
                3,
            )
            refused = await rpc.refusal("GetReadoutManifest", pb.GetReadoutManifestRequest())
            assert trailers(refused)["ganglion-code"] == "missing_required_parameter"


async def test_a_cold_model_is_loaded_once_it_is_asked_for(serving) -> None:
    async with (
        serving(echo()) as served,
        relaying([view_of("a", served.rpc)], cold=frozenset({"echo"})) as relayed,
        connected(relayed.address) as rpc,
    ):
        assert await rpc.opened()
        assert relayed.loads.asked == ["echo"]
        refused = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="nobody"))
        assert (refused.code(), trailers(refused)["ganglion-code"]) == (
            Code.NOT_FOUND,
            "model_not_found",
        )


async def test_sixteen_streams_run_side_by_side_and_mix_nothing_up(serving) -> None:
    async with serving(echo(delay_s=0.001)) as one, serving(echo(delay_s=0.001)) as other:
        views = [view_of("a", one.rpc, "echo"), view_of("b", other.rpc, "echo")]
        async with relaying(views) as relayed, connected(relayed.address) as rpc:

            async def stream(number: int) -> None:
                session_id = await rpc.opened()
                words = list(range(number * 100, number * 100 + 20))
                events = await rpc.generate(session_id, append_tokens=words, max_tokens=20)
                told = b"".join(event.token.piece for event in events)
                assert told == "".join(f" <{word}>" for word in words).encode()

            await asyncio.gather(*map(stream, range(16)))
            assert set(relayed.fleet.in_flight.values()) == {0}


async def test_a_client_that_leaves_or_is_late_ends_the_nodes_work_and_pays_for_what_came(serving) -> None:
    engine = echo(delay_s=0.005, is_unbounded=True)
    async with (
        serving(engine) as served,
        relaying([view_of("a", served.rpc, "echo")]) as relayed,
        connected(relayed.address) as rpc,
    ):
        session_id = await rpc.opened()
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1, 2], max_tokens=5000)
        call = rpc.begin("Generate", request)
        for _ in range(3):
            await call.read()
        assert relayed.fleet.in_flight == {"a": 1}
        call.cancel()
        await served.until_idle()
        await until(lambda: relayed.fleet.in_flight == {"a": 0})
        (place,) = relayed.keys.of_generate()
        assert place.wanted.tokens == 5002
        assert place.usage[0].prompt_tokens == 2
        assert 3 <= place.usage[0].completion_tokens < 100
        late = rpc.channel.unary_stream("/salience.v1.Salience/Generate")
        again = pb.GenerateRequest(session_id=await rpc.opened(), append_tokens=[1], max_tokens=5000)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rest(late(again.SerializeToString(), timeout=0.1))
        assert refused.value.code() is Code.DEADLINE_EXCEEDED
        await served.until_idle()


async def test_a_reader_that_stalls_holds_the_node_back(serving) -> None:
    concepts = tuple(f"concept-{number}" for number in range(512))
    engine = EchoEngine(EchoSettings(concepts=concepts), EchoScript(is_unbounded=True))
    async with (
        serving(engine) as served,
        relaying([view_of("a", served.rpc, "echo")]) as relayed,
        connected(relayed.address) as rpc,
        connected(served.rpc) as direct,
    ):
        everything = [pb.Range(start=0, end=OPEN_END)]
        request = pb.GenerateRequest(
            session_id=await rpc.opened(), append_tokens=[1], max_tokens=8000, readout_ranges=everything
        )
        call = rpc.begin("Generate", request)
        await call.read()

        async def length() -> int:
            return (await direct.call("ListSessions", pb.ListSessionsRequest())).sessions[0].total_tokens

        before, now = -1, await length()
        while now != before:
            await asyncio.sleep(0.1)
            before, now = now, await length()
        assert 1 < now < 6000
        call.cancel()
        await served.until_idle()


async def test_what_a_call_takes_is_reserved_before_and_settled_by_what_it_came_to(serving) -> None:
    keys = Keys({"k": Identity("t", "id", models=frozenset({"echo"}), priority=5, is_limited=True)})
    async with serving(echo(), api_keys=("inner",)) as served:
        views = [view_of("a", served.rpc, "echo", api_key="inner"), view_of("b", served.rpc, "parrot")]
        async with relaying(views, keys) as relayed, connected(relayed.address, "k") as rpc:
            session_id = await rpc.opened()
            assert [place.usage for place in keys.places] == [[None]]
            await rpc.generate(session_id, append_tokens=[1, 2, 3], max_tokens=2)
            await rpc.generate(session_id, offset=5, max_tokens=1, priority=-7)
            drift = await rpc.refusal("Generate", pb.GenerateRequest(session_id=session_id, offset=1))
            assert trailers(drift)["ganglion-session-length"] == "6"
            assert [place.wanted.tokens for place in keys.of_generate()] == [5, 6, 1]
            assert [place.usage for place in keys.of_generate()] == [[Usage(3, 2)], [Usage(5, 1, 4)], [None]]
            denied = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="parrot"))
            assert denied.code() is Code.PERMISSION_DENIED
            keys.refusal = RateLimited("Too many tokens this minute.")
            limited = await rpc.refusal(
                "Generate", pb.GenerateRequest(session_id=session_id, offset=6, max_tokens=1)
            )
            assert (limited.code(), trailers(limited)["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")


async def test_a_gateway_that_leaves_refuses_what_comes_and_finishes_what_runs(serving) -> None:
    engine = echo(delay_s=0.01, is_unbounded=True)
    async with serving(engine) as served, relaying([view_of("a", served.rpc, "echo")]) as relayed:
        async with connected(relayed.address) as rpc:
            request = pb.GenerateRequest(session_id=await rpc.opened(), append_tokens=[1], max_tokens=30)
            running = rpc.begin("Generate", request)
            endless = pb.GenerateRequest(session_id=await rpc.opened(), append_tokens=[1], max_tokens=5000)
            cut = rpc.begin("Generate", endless)
            await asyncio.gather(running.read(), cut.read())
            closing = asyncio.create_task(relayed.door.close(1.0))
            await asyncio.sleep(0.05)
            refused = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="echo"))
            assert (refused.code(), trailers(refused)["ganglion-code"]) == (Code.UNAVAILABLE, "shutting_down")
            assert (await rest(running))[-1].done.completion_tokens == 30
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await rest(cut)
            assert (ended.value.code(), trailers(ended.value)["ganglion-code"]) == (
                Code.UNAVAILABLE,
                "shutting_down",
            )
            await asyncio.wait_for(closing, 5)
        await served.until_idle()
