"""What a node believes of a gateway, and of nobody else."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from grpc_calls import connected

from ganglion.core.request import Request
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.app import build_node, with_middleware
from ganglion.server.bind import check_bind
from ganglion.server.capabilities import capabilities_of
from ganglion.server.gate import Gate
from ganglion.server.life.serve import Reloaded
from ganglion.server.middleware.auth import Auth, identity_by_key, trusted_auth
from ganglion.server.middleware.principal import KeyRing, Principal
from ganglion.server.middleware.scope import principal
from ganglion.server.prometheus import Metrics
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from ganglion.wire.fleet import parse_usage
from ganglion.wire.salience import salience_pb2 as pb

GATEWAY = {"authorization": "Bearer gate"}
MARK = b": x-ganglion-usage "
SAID = "hello there you"
MESSAGES = [{"role": "user", "content": SAID}]
CHAT = {"model": "echo", "messages": MESSAGES}
WIRES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "echo", "prompt": SAID},
    "/v1/messages": {"model": "echo", "messages": MESSAGES, "max_tokens": 50},
    "/v1/responses": {"model": "echo", "input": SAID},
}


class Listening(EchoEngine):
    """An echo that remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(EchoSettings(allow_directives=True))
        self.asked: list[Request] = []

    def generate(self, request: Request):
        self.asked.append(request)
        return super().generate(request)


@asynccontextmanager
async def listening(calling, **fields: object) -> AsyncIterator[tuple[httpx.AsyncClient, Listening]]:
    engine = Listening()
    async with calling(engine, **({"api_keys": ("user",), "gateway_keys": ("gate",)} | fields)) as http:
        yield http, engine


async def test_a_gateway_says_whose_a_request_is_on_every_wire(calling) -> None:
    said = {"x-ganglion-tenant": "acme", "x-ganglion-priority": "3", "x-ganglion-affinity": "0badcafe"}
    more = {
        "/api/chat": {"model": "echo", "messages": MESSAGES},
        "/v1/score": {"model": "echo", "prompt": SAID, "score_ranges": [[0, None]]},
        "/v1/responses/compact": {"model": "echo", "input": SAID},
    }
    async with listening(calling) as (http, engine):
        for path, body in {**WIRES, **more}.items():
            answer = await http.post(path, json=body, headers=GATEWAY | said)
            assert answer.status_code == 200, (path, answer.text)
            asked = engine.asked[-1]
            assert (asked.tenant, asked.priority, asked.affinity) == ("acme", 3, "0badcafe"), path
        assert len(engine.asked) == len(WIRES) + len(more)


async def test_a_request_is_never_more_urgent_than_its_gateway_allows(calling) -> None:
    async with listening(calling) as (http, engine):
        for header, asked, gets in (
            ("3", -5, 3),
            ("3", 7, 7),
            ("-2", 0, 0),
            (None, -5, -5),
            ("9999", 0, 1000),
        ):
            headers = GATEWAY | ({} if header is None else {"x-ganglion-priority": header})
            await http.post("/v1/chat/completions", json=CHAT | {"priority": asked}, headers=headers)
            assert engine.asked[-1].priority == gets, (header, asked)


async def test_of_anybody_else_nothing_is_believed(calling) -> None:
    said = {
        "x-ganglion-tenant": "acme",
        "x-ganglion-priority": "900",
        "x-ganglion-affinity": "0badcafe",
        "x-ganglion-usage": "1",
    }
    body = CHAT | {"stream": True}
    async with listening(calling) as (http, engine):
        answer = await http.post("/v1/chat/completions", json=body, headers=said | {"x-api-key": "user"})
        asked = engine.asked[-1]
        assert asked.tenant not in ("", "acme")
        assert (asked.priority, asked.affinity) == (0, "")
        assert MARK not in answer.content
    async with listening(calling, api_keys=(), gateway_keys=()) as (http, engine):
        for headers in (said, said | GATEWAY):
            answer = await http.post("/v1/chat/completions", json=body, headers=headers)
            asked = engine.asked[-1]
            assert (asked.tenant, asked.priority) == ("", 0)
            # Where there are no keys, what binds only the request itself is anybody's to say.
            assert asked.affinity == "0badcafe"
            assert MARK in answer.content


@pytest.mark.parametrize("key", [b"gate", b"user", None])
async def test_no_door_sees_a_header_of_ours(key: bytes | None) -> None:
    seen: list[tuple[list[tuple[bytes, bytes]], Principal]] = []

    async def app(scope, receive, send) -> None:
        seen.append((scope["headers"], principal(scope)))

    plain = [(b"accept", b"*/*"), *([] if key is None else [(b"x-api-key", key)])]
    headers = [(b"x-ganglion-tenant", b"acme"), *plain, (b"x-ganglion-anything", b"1")]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": list(headers)}
    await Auth(app, identity_by_key(KeyRing(["user"], ["gate"])))(scope, None, None)
    [(left, who)] = seen
    assert left == plain
    assert (who.tenant == "acme") is (key == b"gate")
    assert scope["headers"] == headers, "mounted in another app, the scope is that one's too"


async def test_a_gateway_that_names_nobody_calls_for_itself(calling) -> None:
    async with listening(calling) as (http, engine):
        await http.post("/v1/chat/completions", json=CHAT, headers=GATEWAY)
        own = engine.asked[-1].tenant
        await http.post("/v1/chat/completions", json=CHAT, headers=GATEWAY | {"x-ganglion-tenant": ""})
        assert (bool(own), engine.asked[-1].tenant) == (True, "")
        for path in ("/models", "/health", "/metrics", "/fleet/state", "/v1/models"):
            assert (await http.get(path, headers=GATEWAY)).status_code == 200, path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ganglion-tenant", "two words"),
        ("x-ganglion-tenant", "t" * 129),
        ("x-ganglion-key", "a\tb"),
        ("x-ganglion-priority", "high"),
        ("x-ganglion-priority", "99999"),
        ("x-ganglion-affinity", "0BADCAFE"),
        ("x-ganglion-affinity", "0" * 65),
    ],
)
async def test_what_no_gateway_of_ours_sends_is_refused_by_name(calling, name: str, value: str) -> None:
    async with listening(calling) as (http, engine):
        refused = await http.post("/v1/chat/completions", json=CHAT, headers=GATEWAY | {name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert not engine.asked


async def test_a_request_is_named_by_a_gateway_or_where_there_are_no_keys(calling) -> None:
    async def named(http: httpx.AsyncClient, **headers: str) -> str:
        answer = await http.get("/v1/models", headers={"x-request-id": "mine"} | headers)
        return answer.headers["x-request-id"]

    async with listening(calling) as (http, _):
        assert await named(http, **GATEWAY) == "mine"
        assert await named(http, authorization="Bearer user") != "mine"
        assert await named(http) != "mine"
    async with listening(calling, api_keys=(), gateway_keys=()) as (http, _):
        assert await named(http) == "mine"


async def last_write(app, path: str, body: dict[str, object], headers: dict[str, str]) -> bytes:
    """The bytes of a response's last write that holds any."""
    sent: list[bytes] = []
    asked = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if asked:
            return asked.pop()
        await forever.wait()

    async def send(message) -> None:
        sent.append(message.get("body", b""))

    forever = asyncio.Event()
    named = {"host": "127.0.0.1", "content-type": "application/json"} | headers
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    await app(scope, receive, send)
    return [data for data in sent if data][-1]


LAST_FRAMES = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/messages": b'"type":"message_stop"}\n\n',
    "/v1/responses": b"\n\n",
}


@pytest.mark.parametrize("path", WIRES)
async def test_a_stream_tells_its_gateway_what_it_took_with_its_last_frame(path: str) -> None:
    engine = EchoEngine()
    await engine.open()
    app = build_node(engine, ServerSettings(gateway_keys=("gate",)))
    body = WIRES[path] | {"stream": True}
    told = await last_write(app, path, body, GATEWAY | {"x-ganglion-usage": "1"})
    frames, _, usage = told.partition(MARK)
    assert frames.endswith(LAST_FRAMES[path])
    assert usage.endswith(b"}\n\n")
    assert (parse_usage(usage).prompt_tokens, parse_usage(usage).completion_tokens) == (3, 3)
    assert MARK not in await last_write(app, path, body, GATEWAY)


async def test_choices_count_together_and_a_shared_prompt_once(serving) -> None:
    headers = GATEWAY | {"x-ganglion-usage": "1"}
    async with serving(gateway_keys=("gate",)) as served:
        for path, body, counts in (
            ("/v1/chat/completions", CHAT | {"n": 2}, (3, 6)),
            ("/v1/completions", {"model": "echo", "prompt": ["a b", "a b c"], "n": 2}, (5, 10)),
        ):
            answer = await served.http.post(path, json=body | {"stream": True}, headers=headers)
            usage = parse_usage(answer.content.partition(MARK)[2])
            assert (usage.prompt_tokens, usage.completion_tokens) == counts, path


async def test_a_stream_that_failed_tells_what_it_took_until_then(serving) -> None:
    headers = GATEWAY | {"x-ganglion-usage": "1"}
    async with serving(gateway_keys=("gate",)) as served:
        body = served.chat("!echo fail_at=2\none two three four", stream=True)
        answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
        frames, _, usage = answer.content.partition(MARK)
        assert b'"engine_failed"' in frames
        assert b"[DONE]" not in frames
        assert (parse_usage(usage).prompt_tokens, parse_usage(usage).completion_tokens) == (6, 2)
        lost = await served.http.post("/v1/chat/completions", json=body | {"model": "other"}, headers=headers)
        assert (lost.status_code, MARK in lost.content) == (404, False)


async def test_wires_without_comments_and_whole_answers_hold_none(serving) -> None:
    headers = GATEWAY | {"x-ganglion-usage": "1"}
    async with serving(gateway_keys=("gate",)) as served:
        streamed = await served.http.post("/api/chat", json=CHAT, headers=headers)
        assert all(json.loads(line) for line in streamed.text.splitlines())
        whole = await served.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert whole.json()["usage"]["total_tokens"] == 6


async def test_gateway_keys_are_reloaded_and_open_a_bind(serving) -> None:

    check_bind(ServerSettings(host="0.0.0.0", gateway_keys=("gate",)))
    read = asyncio.Event()

    def reload() -> Reloaded:
        return Reloaded((), read.set, ("fresh",))

    async with serving(reload=reload, gateway_keys=("gate",)) as served:
        assert (await served.http.get("/models")).status_code == 401
        assert (await served.http.get("/models", headers=GATEWAY)).status_code == 200
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(read.wait(), 5)
        assert (await served.http.get("/models", headers=GATEWAY)).status_code == 401
        fresh = {"authorization": "Bearer fresh"}
        assert (await served.http.get("/models", headers=fresh)).status_code == 200


async def test_a_gateway_says_whose_a_call_is_over_grpc_too(serving) -> None:
    async with (
        serving(api_keys=("user",), gateway_keys=("gate",)) as served,
        connected(served.rpc, "gate") as gate,
        connected(served.rpc, "user") as user,
    ):
        request = pb.OpenSessionRequest(model="echo")
        acme = (("x-ganglion-tenant", "acme"),)
        await gate.begin("OpenSession", request, acme)
        await user.begin("OpenSession", request, acme)

        async def sessions(rpc, tenant: str) -> int:
            listed = await rpc.begin(
                "ListSessions", pb.ListSessionsRequest(), (("x-ganglion-tenant", tenant),)
            )
            return len(listed.sessions)

        assert await sessions(gate, "acme") == 1
        assert await sessions(gate, "other") == 0
        assert await sessions(user, "acme") == 1, "its own, whatever it says"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await sessions(gate, "two words")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_where_only_a_gateway_gets_in_everything_is_believed() -> None:
    engine = Listening()
    await engine.open()
    gate = Gate(4)
    routes = build_routes(capabilities_of(engine), ServerSettings(), gate, Metrics())
    app = with_middleware(routes, gate, identity=trusted_auth, max_body_bytes=2**20)
    said = {"x-ganglion-tenant": "acme", "x-ganglion-priority": "4", "x-ganglion-usage": "1"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://desk") as http:
        answer = await http.post(
            "/v1/chat/completions", json=CHAT | {"stream": True}, headers=said | {"x-request-id": "r1"}
        )
        assert (engine.asked[-1].tenant, engine.asked[-1].priority) == ("acme", 4)
        assert (answer.headers["x-request-id"], MARK in answer.content) == ("r1", True)
        refused = await http.get("/v1/models", headers={"x-ganglion-priority": "?"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-ganglion-priority")
