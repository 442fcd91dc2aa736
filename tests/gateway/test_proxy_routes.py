"""Who the front lets in, what it refuses and in whose words, and how it leaves."""

import asyncio
import json

import pytest
from proxy_stage import CHAT, STREAM, Asking, Keeper, always, answer, chunk, get, post, staged

from ganglion.core.errors import NotAllowed
from ganglion.gateway.access.admission import AdmissionRequest, Identity
from ganglion.gateway.proxy.listener import ProxySettings
from ganglion.wire.token_bound import TEMPLATE_TOKENS
from support.raw_http import RawResponse, read_response
from support.waiting import until

GOOD = b'{"ok":true}'
KEYS = {
    b"user": Identity("acme", "k1"),
    b"node": Identity("fleet", "k2", role="node"),
    b"admin": Identity("ops", "k3", role="admin"),
    b"narrow": Identity("acme", "k4", models=frozenset({"m"}), is_limited=True),
}


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}"


def code(heard: RawResponse) -> str:
    return str(json.loads(heard.body)["error"]["code"])


async def test_without_a_key_only_the_public_pages_answer() -> None:
    async with staged(always(answer(GOOD)), keeper=Keeper(dict(KEYS))) as stage:
        for path in ("/", "/docs", "/health/live", "/health/ready"):
            assert (await stage.ask(get(path))).status == 200
        for path in ("/health", "/v1/models", "/metrics", "/fleet", "/%66leet", "/openapi.json", "/nowhere"):
            heard = await stage.ask(get(path))
            assert heard.status == 401 and heard.header(b"www-authenticate") == b"Bearer"
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 401
        assert (await stage.ask(post("/v1/chat/completions", CHAT, "x-api-key: user"))).status == 200
        assert len(stage.desk.asked) == 4


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/fleet", {"admin"}),
        ("GET", "/%66leet", {"admin"}),
        ("GET", "/fleet/state", {"admin"}),
        ("POST", "/fleet/drain", {"admin"}),
        ("POST", "/fleet/join", {"admin", "node"}),
        ("POST", "/fleet/leave", {"admin", "node"}),
        ("POST", "/models/load", {"admin"}),
        ("GET", "http://here/models", {"admin"}),
        ("GET", "/metrics", {"admin"}),
        ("GET", "/discovery", {"admin"}),
        ("GET", "/health", {"admin", "user", "narrow"}),
        ("GET", "/v1/models", {"admin", "user", "narrow"}),
        ("GET", "/version", {"admin", "user", "narrow"}),
    ],
)
async def test_each_role_reaches_what_is_its_own(method: str, path: str, allowed: set[str]) -> None:
    async with staged(keeper=Keeper(dict(KEYS))) as stage:
        for key in ("user", "node", "admin", "narrow"):
            heard = await stage.ask(get(path, bearer(key), "content-length: 0", method=method))
            assert heard.status == (200 if key in allowed else 403), key


async def test_the_desk_reads_a_path_in_the_way_in_which_it_was_judged() -> None:
    async with staged(always(answer(GOOD))) as stage:
        assert (await stage.ask(post("/v1/chat%2Fcompletions", CHAT))).body == GOOD
        assert (await stage.ask(post("/v1/chat/completions#x", CHAT))).status == 400
        assert (await stage.ask(get("/v1/models/a%20b%3F?x=1"))).status == 200
        assert stage.desk.asked[0].line == b"GET /v1/models/a%20b%3F?x=1 HTTP/1.1"


async def test_a_key_may_ask_only_for_its_models() -> None:
    async with staged(always(answer(GOOD)), keeper=Keeper(dict(KEYS))) as stage:
        other = b'{"model":"other","messages":[]}'
        assert (await stage.ask(post("/v1/chat/completions", CHAT, bearer("narrow")))).status == 200
        assert (await stage.ask(post("/v1/chat/completions", other, bearer("narrow")))).status == 403
        told = await stage.ask(post("/v1/messages", other, bearer("narrow")))
        assert json.loads(told.body)["error"]["type"] == "permission_error"
        assert (await stage.ask(post("/v1/responses", b'{"input":"a"}', bearer("narrow")))).status == 400


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", lambda body: body["error"]["type"] == "rate_limit_error"),
        ("/v1/responses", lambda body: body["error"]["code"] == "rate_limit_exceeded"),
        ("/v1/messages", lambda body: body["type"] == "error" and "request_id" in body),
        ("/api/chat", lambda body: isinstance(body["error"], str)),
    ],
)
async def test_a_limit_is_told_in_the_words_of_each_wire(path: str, shape: object) -> None:
    async with staged(always(answer(GOOD)), keeper=Keeper(refuses=True)) as stage:
        heard = await stage.ask(post(path, CHAT))
        assert heard.status == 429 and heard.header(b"retry-after") == b"1"
        assert callable(shape) and shape(json.loads(heard.body))


async def test_an_admission_that_must_be_waited_for_is() -> None:
    async with staged(always(answer(GOOD)), keeper=Keeper(waits=True)) as stage:
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 200
        assert stage.keeper.places[0].wanted == AdmissionRequest("m") and stage.is_settled


async def test_of_a_key_with_a_cap_all_that_a_request_can_take_is_reserved() -> None:
    metered = Keeper({b"k": Identity("t", is_limited=True, is_metered=True)})
    async with staged(always(answer(GOOD)), keeper=metered) as stage:
        assert (await stage.ask(post("/v1/chat/completions", CHAT, "x-api-key: k"))).status == 200
        assert stage.keeper.places[0].wanted == AdmissionRequest(
            "m", len(CHAT) + TEMPLATE_TOKENS, open_answers=1
        )


async def test_what_is_no_request_is_told_so_and_its_connection_closed() -> None:
    async with staged(always(answer(GOOD))) as stage:
        for garbage in (b"hello there\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            reader, writer = await stage.send(garbage)
            heard = await read_response(reader)
            assert heard.status == 400 and heard.header(b"connection") == b"close"
            assert await reader.read() == b""
            writer.close()
        twice = b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"
        both = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n"
        both += b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        for smuggled in (twice, both):
            assert (await stage.ask(smuggled)).status == 400
        assert (await stage.ask(b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n")).status == 405
        assert code(await stage.ask(post("/v1/chat/completions", b"{"))) == "invalid_json"
        assert code(await stage.ask(post("/v1/chat/completions", b"{}"))) == "missing_required_parameter"
        await until(lambda: stage.is_settled)
        assert not stage.desk.asked and not stage.nodes["n0"].asked


async def test_heads_and_bodies_are_bounded() -> None:
    async with staged(always(answer(GOOD)), settings=ProxySettings(max_body_bytes=1000)) as stage:
        heard = await stage.ask(post("/v1/messages", b"x" * 1001))
        assert heard.status == 413 and json.loads(heard.body)["error"]["type"] == "request_too_large"
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        assert (await stage.ask(head + chunk(b"x" * 600) * 2)).status == 413
        assert (await stage.ask(get("/health", f"x: {'y' * 70_000}"))).status == 431
        reader, writer = await stage.send(b"GET /" + b"a" * 70_000)
        assert (await read_response(reader)).status == 431
        writer.close()


async def test_a_large_body_is_read_only_from_somebody_with_a_key() -> None:
    async with staged(keeper=Keeper(dict(KEYS))) as stage:
        head = post("/v1/chat/completions", b"x" * 100_000).partition(b"\r\n\r\n")[0]
        assert (await stage.ask(head + b"\r\n\r\n")).status == 401


async def test_slow_heads_slow_bodies_and_idle_connections_end() -> None:
    settings = ProxySettings(head_s=0.1, body_s=0.1, keep_alive_s=0.1)
    async with staged(always(answer(GOOD)), settings=settings) as stage:
        head, _ = await stage.send(b"GET /health HT")
        body, _ = await stage.send(post("/v1/chat/completions", CHAT)[:-4])
        idle, _ = await stage.send(b"")
        assert (await asyncio.wait_for(read_response(body), 3)).status == 408
        assert await asyncio.wait_for(idle.read(), 3) == b""
        assert await asyncio.wait_for(head.read(), 3) == b""
        for writer in stage.writers:
            writer.close()
        await until(lambda: not stage.front.connections)


async def test_a_guard_judges_host_and_origin_once_a_request() -> None:
    seen = []

    def guard(host: bytes | None, origin: bytes | None, site: bytes | None, is_public: bool):
        seen.append((host, origin, site, is_public))
        return None if host == b"here" else NotAllowed("The Host header does not name this machine.")

    async with staged(always(answer(GOOD)), settings=ProxySettings(guard=guard)) as stage:
        assert (await stage.ask(post("/v1/chat/completions", CHAT, "origin: http://x"))).status == 200
        asked = b"GET /docs HTTP/1.1\r\nhost: evil\r\nsec-fetch-site: cross-site\r\n\r\n"
        assert (await stage.ask(asked)).status == 403
        assert seen == [(b"here", b"http://x", None, False), (b"evil", None, b"cross-site", True)]


async def test_a_draining_front_finishes_what_it_has_and_takes_nothing_new() -> None:
    release = asyncio.Event()

    async def waits(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(GOOD))

    async with staged(waits) as stage:
        running, writer = await stage.send(post("/v1/chat/completions", CHAT))
        idle, other = await stage.send(b"")
        await until(lambda: stage.front.in_flight == 1)
        stage.front.drain()
        assert await asyncio.wait_for(idle.read(), 2) == b""
        refused = await stage.ask(post("/v1/messages", CHAT))
        assert refused.status == 503 and refused.header(b"connection") == b"close"
        assert refused.header(b"retry-after") == b"15"
        assert (await stage.ask(get("/health/live"))).status == 200
        done = asyncio.create_task(stage.front.idle())
        await asyncio.sleep(0.02)
        assert not done.done()
        release.set()
        heard = await read_response(running)
        assert heard.status == 200 and heard.header(b"connection") == b"close"
        await asyncio.wait_for(done, 2)
        writer.close()
        other.close()


async def test_a_websocket_is_bytes_in_both_directions() -> None:
    async def socket(asking: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert asking.header(b"upgrade") == b"websocket" and asking.header(b"sec-websocket-key") == b"abc"
        assert asking.header(b"connection") == b"upgrade" and asking.header(b"x-ganglion-tenant")
        head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        writer.write(head + b"sec-websocket-accept: xyz\r\n\r\nfirst")
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with staged(desk=socket) as stage:
        upgrade = ("connection: Upgrade", "upgrade: WebSocket", "sec-websocket-key: abc")
        reader, writer = await stage.send(get("/v1/responses", *upgrade))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ") and b"sec-websocket-accept: xyz" in head
        assert await reader.readexactly(5) == b"first"
        sent = bytes(range(256)) * 40_000

        async def write() -> None:
            for start in range(0, len(sent), 65536):
                writer.write(sent[start : start + 65536])
                await writer.drain()

        writing = asyncio.create_task(write())
        assert await asyncio.wait_for(reader.readexactly(len(sent)), 10) == sent
        await writing
        assert stage.front.in_flight == 1
        writer.close()
        await until(lambda: stage.front.in_flight == 0)


async def test_metrics_tell_what_went_through() -> None:
    from prometheus_client import generate_latest

    body = b'{"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}'
    async with staged(always(answer(body))) as stage:
        await stage.ask(post("/v1/chat/completions", STREAM))
        page = generate_latest(stage.front.metrics.registry).decode()
        assert 'ganglion_gateway_requests_total{node="n0",status="200",wire="chat"} 1.0' in page
        assert 'ganglion_gateway_tokens_total{kind="prompt",model="m",tenant="everybody"} 3.0' in page
        assert 'ganglion_gateway_cached_tokens_total{model="m",tenant="everybody"} 2.0' in page
        assert 'ganglion_gateway_in_flight{node="n0"} 0.0' in page
        assert 'ganglion_gateway_first_byte_seconds_count{wire="chat"} 1.0' in page
