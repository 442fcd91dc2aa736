"""What goes through the front: bytes as they are, heads as they should be."""

import asyncio

import pytest
from proxy_stage import CHAT, SSE_HEAD, STREAM, Asking, Keeper, always, answer, chunk, get, post, staged

from ganglion.gateway.access.admission import Identity
from ganglion.gateway.proxy.listener import ProxySettings
from ganglion.gateway.routing.decision import TranslatedNode
from support.raw_http import read_response

REPLY = b'{"id":"x","choices":[{"text":"h\xc3\xa9"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
EVENTS = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'
COMMENT = b': x-ganglion-usage {"prompt_tokens":5,"completion_tokens":2}\n\n'


async def test_a_whole_answer_is_the_nodes_own_bytes() -> None:
    async with staged(always(answer(REPLY))) as stage:
        heard = await stage.ask(post("/v1/chat/completions", CHAT))
        assert (heard.status, heard.body) == (200, REPLY)
        assert stage.nodes["n0"].asked[0].body == CHAT
        assert stage.is_settled
        usage = stage.keeper.places[0].settled[0]
        assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (3, 4)


async def test_a_connection_to_a_node_carries_one_request_after_the_other() -> None:
    ports = set()

    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.add(writer.get_extra_info("peername")[1])
        writer.write(answer(REPLY))

    async with staged(script) as stage:
        for _ in range(5):
            await stage.ask(post("/v1/chat/completions", CHAT))
        assert len(ports) == 1


async def test_a_stream_is_the_nodes_own_events_without_the_count_that_only_we_asked_for() -> None:
    async with staged(always(SSE_HEAD + chunk(EVENTS) + chunk(COMMENT) + b"0\r\n\r\n")) as stage:
        heard = await stage.ask(post("/v1/chat/completions", STREAM))
        assert heard.body == EVENTS
        assert heard.header(b"transfer-encoding") == b"chunked"
        usage = stage.keeper.places[0].settled[0]
        assert usage is not None and usage.completion_tokens == 2


async def test_a_node_that_writes_byte_by_byte_changes_nothing() -> None:
    data = SSE_HEAD + chunk(EVENTS[:20]) + chunk(EVENTS[20:] + COMMENT) + b"0\r\n\r\n"

    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for place in range(len(data)):
            writer.write(data[place : place + 1])
            await asyncio.sleep(0)

    async with staged(script) as stage:
        assert (await stage.ask(post("/v1/chat/completions", STREAM))).body == EVENTS


async def test_a_request_that_comes_byte_by_byte_is_the_same_request() -> None:
    async with staged(always(answer(REPLY))) as stage:
        reader, writer = await stage.send(b"")
        for place in post("/v1/chat/completions", CHAT):
            writer.write(bytes([place]))
            await asyncio.sleep(0)
        assert (await read_response(reader)).body == REPLY
        assert stage.nodes["n0"].asked[0].body == CHAT
        writer.close()


async def test_a_chunked_request_is_sent_on_with_a_length_and_without_its_trailers() -> None:
    async with staged(always(answer(REPLY))) as stage:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
        body = chunk(CHAT[:9]) + chunk(CHAT[9:]) + b"0\r\nx-late: 1\r\nauthorization: Bearer late\r\n\r\n"
        assert (await stage.ask(head + body)).status == 200
        asked = stage.nodes["n0"].asked[0]
        assert asked.body == CHAT
        assert asked.header(b"content-length") == b"%d" % len(CHAT)
        assert asked.header(b"x-late") is None and asked.header(b"authorization") == b"Bearer ours"


async def test_what_a_client_says_of_itself_never_reaches_a_node() -> None:
    keeper = Keeper({b"secret": Identity("acme", "key-1", priority=3)})
    async with staged(always(answer(REPLY)), keeper=keeper) as stage:
        heard = await stage.ask(
            post(
                "/v1/chat/completions",
                CHAT,
                "Authorization: Bearer secret",
                "x-api-key: secret",
                "Cookie: a=b",
                "x-ganglion-tenant: other",
                "X-Ganglion-Priority: -9",
                "x-ganglion-epoch: 1",
                "connection: keep-alive, x-hop",
                "x-hop: 1",
                "te: trailers",
                "proxy-authorization: Basic x",
                "accept-encoding: gzip",
                "x-forwarded-for: 1.2.3.4",
                "traceparent: 00-a-b-01",
                "tracestate: k=v",
                "x-request-id: mine_1-2",
                "x-custom: kept",
            )
        )
        asked = stage.nodes["n0"].asked[0]
        names = [name for name, _ in asked.headers]
        assert len(names) == len(set(names))
        assert asked.header(b"authorization") == b"Bearer ours"
        assert asked.header(b"x-ganglion-tenant") == b"acme"
        assert asked.header(b"x-ganglion-key") == b"key-1"
        assert asked.header(b"x-ganglion-priority") == b"3"
        assert asked.header(b"x-ganglion-epoch") == b"7"
        assert asked.header(b"x-ganglion-usage") == b"1"
        assert asked.header(b"x-ganglion-affinity")
        assert asked.header(b"traceparent") == b"00-a-b-01" and asked.header(b"tracestate") == b"k=v"
        assert asked.header(b"x-request-id") == b"mine_1-2" and asked.header(b"x-custom") == b"kept"
        assert heard.header(b"x-request-id") == b"mine_1-2" and heard.header(b"request-id") == b"mine_1-2"
        forbidden = {b"cookie", b"x-api-key", b"x-hop", b"te", b"proxy-authorization", b"accept-encoding"}
        assert not forbidden.intersection(names) and b"x-forwarded-for" not in names


async def test_a_stranger_is_told_nothing_of_ours() -> None:
    async with staged(always(answer(REPLY)), is_foreign=True) as stage:
        await stage.ask(post("/v1/chat/completions", CHAT, "x-custom: 1", "openai-organization: o"))
        asked = stage.nodes["n0"].asked[0]
        assert not [name for name, _ in asked.headers if name.startswith(b"x-ganglion-")]
        assert asked.header(b"authorization") == b"Bearer theirs"
        assert asked.header(b"x-custom") is None and asked.header(b"openai-organization") is None


async def test_hop_by_hop_headers_of_an_answer_end_here() -> None:
    more = "connection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nset-cookie: a=b\r\nx-kept: 1\r\n"
    more += "x-ganglion-thing: 1\r\nx-request-id: theirs\r\n"
    async with staged(always(answer(REPLY, more=more))) as stage:
        heard = await stage.ask(post("/v1/chat/completions", CHAT, "x-request-id: no spaces allowed"))
        names = [name for name, _ in heard.headers]
        assert not {b"connection", b"x-hop", b"keep-alive", b"set-cookie", b"x-ganglion-thing"} & set(names)
        assert names.count(b"x-request-id") == 1 and heard.header(b"x-kept") == b"1"
        assert heard.header(b"x-request-id") not in (b"theirs", b"no spaces allowed")


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def script(asking: Asking, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = int(asking.header(b"x-number") or b"0")
        await asyncio.sleep(0.01 if number % 2 else 0)
        writer.write(answer(b'{"number":%d}' % number))

    async with staged(script) as stage:
        asked = b"".join(post("/v1/chat/completions", CHAT, f"x-number: {n}") for n in range(40))
        reader, writer = await stage.send(asked)
        told = [(await read_response(reader)).body for _ in range(40)]
        assert told == [b'{"number":%d}' % number for number in range(40)]
        writer.close()
        assert stage.is_settled


async def test_more_pipelined_requests_than_anybody_honest_sends_are_refused() -> None:
    async with staged(always(answer(REPLY))) as stage:
        reader, writer = await stage.send(get("/health") * 200)
        statuses = [(await read_response(reader)).status for _ in range(66)]
        assert statuses == [200] * 65 + [400]
        assert await reader.read() == b""
        writer.close()


async def test_http_1_0_is_answered_until_the_connection_closes() -> None:
    async with staged(always(SSE_HEAD + chunk(EVENTS) + b"0\r\n\r\n")) as stage:
        heard = await stage.ask(post("/v1/chat/completions", STREAM, version="1.0"))
        assert heard.body == EVENTS
        assert heard.header(b"transfer-encoding") is None and heard.header(b"connection") == b"close"


async def test_http_1_0_keeps_a_connection_that_it_asks_to_keep() -> None:
    async with staged(always(answer(REPLY))) as stage:
        asked = post("/v1/chat/completions", CHAT, "connection: keep-alive", version="1.0")
        reader, writer = await stage.send(asked + asked)
        for _ in range(2):
            heard = await read_response(reader)
            assert heard.header(b"connection") == b"keep-alive"
        writer.close()


async def test_somebody_who_waits_for_leave_to_send_gets_it() -> None:
    async with staged(always(answer(REPLY))) as stage:
        head, _, body = post("/v1/chat/completions", CHAT, "expect: 100-continue").partition(b"\r\n\r\n")
        reader, writer = await stage.send(head + b"\r\n\r\n")
        assert (await read_response(reader)).status == 100
        writer.write(body)
        assert (await read_response(reader)).body == REPLY
        writer.close()


async def test_head_is_get_without_a_body() -> None:
    async with staged() as stage:
        reader, writer = await stage.send(get("/health/live", method="HEAD") + get("/health/live"))
        bare = await read_response(reader, has_body=False)
        assert bare.status == 200 and bare.header(b"content-length") == b"13"
        assert (await read_response(reader)).body == b'{"desk":true}'
        writer.close()


async def test_an_upgrade_to_anything_else_is_answered_in_http() -> None:
    async with staged(always(answer(REPLY))) as stage:
        asked = post("/v1/chat/completions", CHAT, "connection: upgrade", "upgrade: h2c")
        reader, writer = await stage.send(asked + asked)
        assert [(await read_response(reader)).body for _ in range(2)] == [REPLY, REPLY]
        writer.close()


async def test_only_the_model_is_renamed_where_a_node_calls_it_otherwise() -> None:
    async with staged(always(answer(REPLY))) as stage:
        stage.chooser.model = "m-q4.gguf"
        body = b'{"temperature": 0.10, "model": "m", "messages":[ {"role":"user","content":"\\u00e9"} ]}'
        await stage.ask(post("/v1/chat/completions", body))
        await stage.ask(get("/tokenizer_info?model=m&x=1"))
        first, second = stage.nodes["n0"].asked
        told = b'{"temperature":0.10,"model":"m-q4.gguf","messages":[ {"role":"user","content":"\\u00e9"} ]}'
        assert first.body == told
        assert second.line == b"GET /tokenizer_info?x=1&model=m-q4.gguf HTTP/1.1"


async def test_another_name_of_a_route_reaches_a_node_under_the_one_that_every_server_knows() -> None:
    async with staged(always(answer(REPLY))) as stage:
        assert (await stage.ask(post("/chat/completions?x=1", CHAT))).body == REPLY
        assert (await stage.ask(post("/%63ompletions", CHAT))).body == REPLY
        first, second = stage.nodes["n0"].asked
        assert first.line == b"POST /v1/chat/completions?x=1 HTTP/1.1"
        assert second.line == b"POST /v1/completions HTTP/1.1"
        assert stage.is_settled


async def test_what_no_node_can_answer_in_its_wire_goes_to_the_desk_as_it_is() -> None:
    async with staged(always(answer(REPLY))) as stage:
        spec = stage.fleet.nodes["n0"].spec
        stage.chooser.decisions = [TranslatedNode(spec, "other")]
        assert (await stage.ask(post("/v1/messages", CHAT))).body == b'{"desk":true}'
        assert stage.desk.asked[0].body == CHAT and not stage.nodes["n0"].asked
        assert (await stage.ask(get("/v1/models"))).status == 200
        assert (await stage.ask(post("/v1/responses", b'{"model":"m","input":"hi"}'))).status == 200
        assert [asked.line.split(b" ")[1] for asked in stage.desk.asked[1:]] == [
            b"/v1/models",
            b"/v1/responses",
        ]
        assert len(stage.keeper.places) == 2 and stage.is_settled


async def test_a_body_too_large_to_hold_is_streamed_with_its_length() -> None:
    large = b'{"data":"' + b"x" * 600_000 + b'","usage":{"prompt_tokens":9,"completion_tokens":0}}'
    async with staged(always(answer(large))) as stage:
        heard = await stage.ask(post("/v1/embeddings", b'{"model":"m","input":"a"}'))
        assert heard.body == large and heard.header(b"content-length") == b"%d" % len(large)
        usage = stage.keeper.places[0].settled[0]
        assert usage is not None and usage.prompt_tokens == 9


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_node_that_closes_after_its_answer_has_still_answered(is_kept: bool) -> None:
    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_kept:
            writer.write(answer(REPLY, more="connection: close\r\n"))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + REPLY)
        writer.close()

    async with staged(script) as stage:
        for _ in range(3):
            assert (await stage.ask(post("/v1/chat/completions", CHAT))).body == REPLY
        assert stage.is_settled


async def test_a_page_of_a_configured_origin_may_ask_and_read() -> None:
    settings = ProxySettings(cors_origins=frozenset({"https://page.example"}))
    async with staged(always(answer(REPLY)), settings=settings) as stage:
        asks = get(
            "/v1/chat/completions",
            "origin: https://page.example",
            "access-control-request-method: POST",
            "access-control-request-headers: authorization",
            method="OPTIONS",
        )
        allowed = await stage.ask(asks)
        assert allowed.status == 204 and allowed.header(b"access-control-allow-headers") == b"authorization"
        heard = await stage.ask(post("/v1/chat/completions", CHAT, "origin: https://page.example"))
        assert heard.header(b"access-control-allow-origin") == b"https://page.example"
        other = await stage.ask(post("/v1/chat/completions", CHAT, "origin: https://other.example"))
        assert other.header(b"access-control-allow-origin") is None
        assert stage.nodes["n0"].asked[0].header(b"origin") is None


async def test_one_line_a_request_without_its_prompt_and_its_key() -> None:
    keeper = Keeper({b"sk-secret": Identity("acme", "key-1")})
    async with staged(always(answer(REPLY)), keeper=keeper) as stage:
        await stage.ask(post("/v1/chat/completions", CHAT, "authorization: Bearer sk-secret"))
        await stage.ask(post("/v1/chat/completions", CHAT, "authorization: Bearer wrong"))
        stage.front.log.flush()
        lines = "".join(stage.log).splitlines()
        assert len(lines) == 2
        assert "status=200" in lines[0] and "tenant=acme" in lines[0] and "tokens=3+4" in lines[0]
        assert "status=401" in lines[1]
        assert "hello" not in "".join(lines) and "sk-secret" not in "".join(lines)
