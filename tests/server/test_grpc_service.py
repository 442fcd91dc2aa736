"""Sessions over gRPC on a real socket, around an echo."""

import asyncio
import logging

import grpc
import pytest
from grpc_calls import connected, stream_of, trailers

from ganglion.cli.system.this_machine import ThisMachine
from ganglion.core.errors import EngineFailed
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.settings import AnswerDeadlines
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.salience import salience_pb2 as pb
from support.waiting import until

Code = grpc.StatusCode


async def tokens_of(rpc, text: str) -> list[int]:
    return list((await rpc.call("Tokenize", pb.TokenizeRequest(model="echo", text=text))).tokens)


async def test_a_session_is_opened_appended_to_forked_cut_and_closed(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model="echo", ttl_s=60))
        assert (opened.model, opened.context_length, opened.ttl_s) == ("echo", 8192, 60)
        assert not opened.HasField("readout")
        tokens = await tokens_of(rpc, "hello there you")
        *told, last = await rpc.generate(opened.session_id, append_tokens=tokens, max_tokens=2)
        assert [event.token.position for event in told] == [3, 4]
        assert b"".join(event.token.piece for event in told) == b"hello there"
        assert not any(event.token.is_prefill or event.token.HasField("sampled_logprob") for event in told)
        assert (last.done.prompt_tokens, last.done.completion_tokens, last.done.total_tokens) == (3, 2, 5)
        assert last.done.finish_reason == "length"
        forked = await rpc.call("ForkSession", pb.ForkSessionRequest(session_id=opened.session_id, at=4))
        assert forked.total_tokens == 4
        cut = await rpc.call(
            "TruncateSession", pb.TruncateSessionRequest(session_id=opened.session_id, length=1)
        )
        assert cut.total_tokens == 1
        listed = (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
        lengths = {session.session_id: session.total_tokens for session in listed}
        assert lengths == {opened.session_id: 1, forked.session_id: 4}
        for session_id in lengths:
            await rpc.call("CloseSession", pb.CloseSessionRequest(session_id=session_id))
        assert not (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions


async def test_ranges_bring_back_what_was_committed_with_logprobs_and_alternatives(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        tokens = await tokens_of(rpc, "a b c d")
        await rpc.generate(session_id, append_tokens=tokens)
        open_end = [pb.Range(start=0, end=2), pb.Range(start=3, end=2**32 - 1)]
        *told, _ = await rpc.generate(
            session_id, offset=4, max_tokens=1, logprobs_ranges=open_end, logprob_top_k=2
        )
        seen = [(event.token.position, event.token.is_prefill) for event in told if event.HasField("token")]
        assert seen == [(0, True), (1, True), (3, True), (4, False)]
        assert not told[0].token.HasField("sampled_logprob")
        assert told[-1].token.HasField("sampled_logprob")
        assert len(told[-1].token.top) == 2


async def test_an_image_is_placed_saved_restored_and_never_cut(serving, tmp_path) -> None:
    sessions = SessionSettings(folder=tmp_path / "sessions")
    async with serving(sessions=sessions) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        image = pb.AppendImageRequest(session_id=session_id, data=b"x" * 500, mime="image/png")
        placed = await rpc.call("AppendImage", image)
        assert (placed.placeholder_count, placed.total_length) == (5, 5)
        refused = await rpc.refusal(
            "TruncateSession", pb.TruncateSessionRequest(session_id=session_id, length=3)
        )
        assert (refused.code(), trailers(refused)["ganglion-code"]) == (
            Code.FAILED_PRECONDITION,
            "image_block_cut",
        )
        saved = [
            part async for part in rpc.begin("SaveSession", pb.SaveSessionRequest(session_id=session_id))
        ]
        restored = await rpc.begin("RestoreSession", stream_of(saved))
        assert (restored.total_tokens, restored.model) == (5, "echo")
        suspended = await rpc.call("SuspendSession", pb.SuspendSessionRequest(session_id=session_id))
        assert suspended.total_tokens == 5
        assert suspended.size_bytes > 0


async def test_a_stop_text_ends_an_answer_and_every_committed_token_was_told(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        tokens = await tokens_of(rpc, "one two three four")
        session_id = await rpc.opened()
        stop = ["wo th", "four", "\n"]
        events = await rpc.generate(session_id, append_tokens=tokens, max_tokens=9, stop=stop)
        told = [event.token.id for event in events if event.HasField("token")]
        ended = events[-1].done
        assert told == tokens[:3] and (ended.completion_tokens, ended.total_tokens) == (3, 7)
        assert (ended.finish_reason, ended.stop_text, ended.stop_start) == ("stop", "wo th", 5)
        assert not ended.HasField("stop_token")
        held = await rpc.call("GetTokens", pb.GetTokensRequest(session_id=session_id))
        assert (list(held.tokens), held.total_tokens) == ([*tokens, *told], 7)
        part = await rpc.call("GetTokens", pb.GetTokensRequest(session_id=session_id, offset=5, limit=1))
        assert (list(part.tokens), part.total_tokens) == (told[1:2], 7)
        image = pb.AppendImageRequest(session_id=session_id, data=b"x" * 200, mime="image/png", offset=7)
        await rpc.call("AppendImage", image)
        part = await rpc.call("GetTokens", pb.GetTokensRequest(session_id=session_id, offset=6))
        assert list(part.tokens) == [told[2], -1, -1]
        error = await rpc.refusal("GetTokens", pb.GetTokensRequest(session_id=session_id, offset=10))
        assert (trailers(error)["ganglion-code"], trailers(error)["ganglion-param"]) == (
            "session_drift",
            "offset",
        )


async def test_messages_are_rendered_as_what_follows_the_turns_before(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        chat = '{"messages": [{"role": "user", "content": "one two"}, {"role": "user", "content": "three"}]}'
        tokens = await tokens_of(rpc, "zero")

        async def rendered(**fields: object) -> str:
            request = pb.RenderMessagesRequest(model="echo", chat=chat, **fields)
            reply = await rpc.call("RenderMessages", request)
            assert reply.tokens
            return reply.text

        # An echo's template puts a line break between messages.
        assert await rendered() == "one two\nthree"
        assert await rendered(is_continued=True) == "\none two\nthree"
        assert await rendered(preceding_tokens=tokens) == "\none two\nthree"


async def test_text_goes_to_tokens_and_back(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        tokens = await tokens_of(rpc, "grün is green")
        back = await rpc.call("Detokenize", pb.DetokenizeRequest(model="echo", tokens=tokens))
        assert back.text == "grün is green"
        assert b"".join(back.pieces) == "grün is green".encode()


async def test_each_error_has_its_status_and_says_the_length(serving) -> None:
    async with serving(sessions=SessionSettings(max_per_key=2)) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        await rpc.generate(session_id, append_tokens=[1, 2, 3])

        async def told(method: str, request) -> tuple[Code, str, str | None]:
            error = await rpc.refusal(method, request)
            found = trailers(error)
            return error.code(), found["ganglion-code"], found.get("ganglion-session-length")

        generate = pb.GenerateRequest
        assert await told("Generate", generate(session_id=session_id, offset=2)) == (
            Code.FAILED_PRECONDITION,
            "session_drift",
            "3",
        )
        assert await told(
            "Generate", generate(session_id=session_id, offset=3, append_tokens=[1] * 9000)
        ) == (
            Code.RESOURCE_EXHAUSTED,
            "context_length_exceeded",
            "3",
        )
        assert await told("Generate", generate(session_id="nobody")) == (
            Code.NOT_FOUND,
            "session_not_found",
            None,
        )
        assert await told("OpenSession", pb.OpenSessionRequest(model="nobody")) == (
            Code.NOT_FOUND,
            "model_not_found",
            None,
        )
        assert await told("GetReadoutManifest", pb.GetReadoutManifestRequest()) == (
            Code.NOT_FOUND,
            "readout_not_found",
            None,
        )
        await rpc.opened()
        limit = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="echo"))
        assert (limit.code(), trailers(limit)["ganglion-code"]) == (
            Code.RESOURCE_EXHAUSTED,
            "session_limit_exceeded",
        )
        assert trailers(limit)["retry-after"] == "1"


async def test_one_call_at_a_time_changes_a_session(serving) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(delay_s=0.05, is_unbounded=True))
    async with serving(engine) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=100)
        running = rpc.begin("Generate", request)
        await running.read()
        busy = await rpc.refusal("Generate", pb.GenerateRequest(session_id=session_id, offset=1))
        assert (busy.code(), trailers(busy)["ganglion-code"]) == (Code.ABORTED, "session_busy")
        assert int(trailers(busy)["ganglion-session-length"]) >= 2
        running.cancel()


GENERATE_REFUSED = {
    "session_id": {},
    "append_tokens": {"append_tokens": [2**32 - 1]},
    "logprob_top_k": {"logprob_top_k": 21},
    "logprobs_ranges": {"logprobs_ranges": [pb.Range()] * 65},
    "logprobs_ranges[1]": {"logprobs_ranges": [pb.Range(end=1), pb.Range(start=2, end=1)]},
    "readout_ranges[0]": {"readout_ranges": [pb.Range(start=2, end=1)]},
    "temperature": {"temperature": float("nan")},
    "top_p": {"top_p": -0.1},
    "top_k": {"top_k": 2**31},
    "min_p": {"min_p": 1.5},
    "priority": {"priority": 2000},
    "max_tokens": {"max_tokens": 2**31 + 1},
    "stop_token_ids": {"stop_token_ids": [1] * 1025},
    "stop": {"stop": ["x"] * 17},
    "stop[1]": {"stop": ["x", "y" * 513]},
    "stop[0]": {"stop": [""]},
    "presence_penalty": {"presence_penalty": 2.5},
    "frequency_penalty": {"frequency_penalty": float("nan")},
    "repetition_penalty": {"repetition_penalty": 0.0},
    "prefix": {"prefix": "x" * 1025},
    "json_schema": {"json_schema": "[1]"},
    "pattern": {"pattern": "x" * (2**16 + 1)},
    "choice.options": {"choice": pb.Choice()},
    "choice.options[1]": {"choice": pb.Choice(options=["x", ""])},
    "lark": {"lark": "x" * (2**18 + 1)},
    "gbnf": {"gbnf": ""},
}


async def test_a_field_out_of_bounds_is_refused_by_name(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        for param, fields in GENERATE_REFUSED.items():
            request = pb.GenerateRequest(**({"session_id": "s"} if fields else {}), **fields)
            error = await rpc.refusal("Generate", request)
            found = (error.code(), trailers(error)["ganglion-param"])
            assert found == (Code.INVALID_ARGUMENT, param)
        steer = pb.Steer(concept="c", strength=float("inf"))
        for param, fields in {
            "model": {"model": "  "},
            "ttl_s": {"model": "echo", "ttl_s": float("inf")},
            "steering": {"model": "echo", "steering": [pb.Steer(concept="c")] * 17},
            "steering[0].strength": {"model": "echo", "steering": [steer]},
            "steering[0].layers": {"model": "echo", "steering": [pb.Steer(concept="c", layers=[1, 1])]},
            "steering[0].concept": {"model": "echo", "steering": [pb.Steer()]},
        }.items():
            error = await rpc.refusal("OpenSession", pb.OpenSessionRequest(**fields))
            assert (error.code(), trailers(error)["ganglion-param"]) == (Code.INVALID_ARGUMENT, param)
        for param, method, request in (
            ("limit", "GetTokens", pb.GetTokensRequest(session_id="s", limit=2**16 + 1)),
            ("session_id", "GetTokens", pb.GetTokensRequest()),
            ("model", "RenderMessages", pb.RenderMessagesRequest(chat="{}")),
            ("chat", "RenderMessages", pb.RenderMessagesRequest(model="echo")),
            ("messages", "RenderMessages", pb.RenderMessagesRequest(model="echo", chat="{}")),
            (
                "messages",
                "RenderMessages",
                pb.RenderMessagesRequest(model="echo", chat='{"messages": []}', is_continued=True),
            ),
            ("preceding_tokens", "RenderMessages", pb.RenderMessagesRequest(preceding_tokens=[1] * 257)),
        ):
            error = await rpc.refusal(method, request)
            assert (error.code(), trailers(error)["ganglion-param"]) == (Code.INVALID_ARGUMENT, param)
        for fields in ({"ttl_s": -1}, {"ttl_s": 0}):
            error = await rpc.refusal("ForkSession", pb.ForkSessionRequest(session_id="s", **fields))
            assert trailers(error)["ganglion-param"] == "ttl_s"


async def test_a_message_that_is_none_is_told_as_such(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        for path in (
            "/salience.v1.Salience/OpenSession",
            "/salience.v1.Salience/RestoreSession",
            "/grpc.health.v1.Health/Check",
        ):
            for data in (b"\xff\xff\xff", b"\x0a\x02\xff\xfe"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await rpc.channel.unary_unary(path)(data)
                assert refused.value.code() is Code.INVALID_ARGUMENT, (path, data)
        with pytest.raises(grpc.aio.AioRpcError) as empty:
            await rpc.channel.stream_unary("/salience.v1.Salience/OpenSession")(stream_of([]))
        assert empty.value.code() is Code.INVALID_ARGUMENT


async def test_a_hint_with_any_letters_travels_as_ascii(serving) -> None:
    async with serving(EchoEngine(EchoSettings(model_id="größe"))) as served, connected(served.rpc) as rpc:
        error = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="100%"))
        assert trailers(error)["ganglion-hint"] == "Here: gr%C3%B6%C3%9Fe."
        assert "100%" in error.details()


async def test_what_breaks_inside_is_internal_and_says_nothing(serving, caplog) -> None:
    class Broken(EchoEngine):
        async def tokenizer_info(self, model: str):
            raise RuntimeError("a secret of the house")

    async with serving(Broken()) as served, connected(served.rpc) as rpc:
        error = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="echo"))
        assert error.code() is Code.INTERNAL
        assert "secret" not in f"{error.details()}{error.trailing_metadata()}"
    [logged] = [record for record in caplog.records if "a call failed" in record.message]
    assert "request_id=" in logged.message


async def test_an_engine_that_fails_midway_ends_the_stream_and_keeps_what_was_told(serving) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(fail_at=2, error=EngineFailed("gone"), is_unbounded=True))
    async with serving(engine) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=9)
        error = await rpc.refusal("Generate", request)
        assert (error.code(), trailers(error)["ganglion-session-length"]) == (Code.INTERNAL, "3")


async def test_cancelling_stops_the_work_and_keeps_what_was_committed(serving) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(delay_s=0.01, is_unbounded=True))
    async with serving(engine) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=5000)
        call = rpc.begin("Generate", request)
        for _ in range(3):
            await call.read()
        assert served.slots_used() == 1
        call.cancel()
        await served.until_idle()
        [session] = (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
        assert session.total_tokens >= 4
        assert not session.is_busy
        offset = session.total_tokens
        [done] = await rpc.generate(session_id, offset=offset)
        assert done.done.total_tokens == offset


async def test_the_clients_own_deadline_stops_the_work(serving) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(delay_s=0.01, is_unbounded=True))
    async with serving(engine) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        generate = rpc.channel.unary_stream("/salience.v1.Salience/Generate")
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=5000)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            async for _ in generate(request.SerializeToString(), timeout=0.2):
                pass
        assert late.value.code() is Code.DEADLINE_EXCEEDED
        await served.until_idle()


@pytest.mark.parametrize(
    ("script", "deadlines", "which"),
    [
        (EchoScript(first_token_delay_s=5), AnswerDeadlines(first_token_s=0.05), "first_token"),
        (EchoScript(delay_s=5, is_unbounded=True), AnswerDeadlines(idle_s=0.05), "idle"),
        (EchoScript(delay_s=0.01, is_unbounded=True), AnswerDeadlines(total_s=0.1), "total"),
    ],
)
async def test_the_servers_deadlines_hold(serving, script, deadlines, which) -> None:
    engine = EchoEngine(EchoSettings(), script)
    async with serving(engine, deadlines=deadlines) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=5000)
        error = await rpc.refusal("Generate", request)
        assert error.code() is Code.DEADLINE_EXCEEDED
        assert which in error.details()
        await served.until_idle()


async def test_a_call_that_never_sends_its_message_is_ended(serving) -> None:
    async with serving(body_s=0.1) as served, connected(served.rpc) as rpc:
        call = rpc.channel.stream_stream("/salience.v1.Salience/Generate")(timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await call.read()
        assert late.value.code() is Code.DEADLINE_EXCEEDED
        assert trailers(late.value)["ganglion-code"] == "deadline_exceeded"


async def test_a_reader_that_stalls_is_cut(serving) -> None:
    engine = EchoEngine(EchoSettings(context=2**20), EchoScript(reply="word" * 4096 + " ", is_unbounded=True))
    async with serving(engine, stalled_reader_s=0.3) as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=2**19)
        call = rpc.begin("Generate", request)
        await call.read()
        await served.until_idle(within_s=10)
        call.cancel()


async def test_calls_are_named_logged_and_counted(serving, caplog) -> None:
    caplog.set_level(logging.INFO, "ganglion.request")
    async with serving(gateway_keys=("s3cret",)) as served, connected(served.rpc, "s3cret") as rpc:
        request = pb.TokenizeRequest(model="echo", text="a very private thing")
        call = rpc.begin("Tokenize", request, (("x-request-id", "mine-1"),))
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine-1"
        await call
        session_id = await rpc.opened()
        await rpc.generate(session_id, append_tokens=[1, 2], max_tokens=2)
        await rpc.refusal("CloseSession", pb.CloseSessionRequest(session_id="nobody"))
        page = (await served.http.get("/metrics", headers={"x-api-key": "s3cret"})).text
    for line in (
        'ganglion_rpcs_total{code="OK",method="/salience.v1.Salience/Tokenize"} 1.0',
        'ganglion_rpcs_total{code="NOT_FOUND",method="/salience.v1.Salience/CloseSession"} 1.0',
        "ganglion_sessions_open 1.0",
        "ganglion_session_tokens 4.0",
        'ganglion_completion_tokens_total{model="echo"} 2.0',
        'ganglion_time_to_first_token_seconds_count{model="echo"} 1.0',
    ):
        assert line in page
    lines = [record.getMessage() for record in caplog.records if record.name == "ganglion.request"]
    assert any(
        "method=/salience.v1.Salience/Tokenize status=OK" in line and "mine-1" in line for line in lines
    )
    assert not any("private" in line or "s3cret" in line for line in lines)


async def test_reflection_shows_the_service_to_who_has_a_key(serving) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with serving(api_keys=("k",)) as served, connected(served.rpc, "k") as rpc:
        stub = reflection_pb2_grpc.ServerReflectionStub(rpc.channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="salience.v1.Salience"),
        ]
        listed, described = [
            answer
            async for answer in stub.ServerReflectionInfo(stream_of(asked), metadata=rpc.metadata, timeout=10)
        ]
        names = {service.name for service in listed.list_services_response.service}
        assert {"salience.v1.Salience", "grpc.health.v1.Health"} <= names
        assert b"GenerateRequest" in described.file_descriptor_response.file_descriptor_proto[0]


async def test_discovery_says_where_grpc_is(serving) -> None:
    async with serving(machine=ThisMachine().source()) as served:
        found = (await served.http.get("/discovery")).json()["grpc"]
        assert f"{found['host']}:{found['port']}" == served.rpc
    async with serving(machine=ThisMachine().source(), has_grpc=False) as served:
        assert (await served.http.get("/discovery")).json()["grpc"] is None
        assert served.rpc == ""


async def test_nothing_is_left_after_many_clients_that_vanish(serving) -> None:
    engine = EchoEngine(EchoSettings(parallel=64), EchoScript(delay_s=0.01, is_unbounded=True))
    async with serving(engine) as served:
        before = len(asyncio.all_tasks())
        async with connected(served.rpc) as rpc:
            for session_id in [await rpc.opened() for _ in range(20)]:
                request = pb.GenerateRequest(session_id=session_id, append_tokens=[1], max_tokens=5000)
                await rpc.begin("Generate", request).read()
        await served.until_idle()
        await until(lambda: len(asyncio.all_tasks()) <= before + 2)
