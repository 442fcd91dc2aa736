"""Who is let in: keys, hosts and origins, over every route there is."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from ganglion.engines.echo.engine import EchoEngine
from ganglion.server.bind import BindFailed, InsecureBind, bind, check_bind, is_loopback
from ganglion.server.capabilities import capabilities_of
from ganglion.server.gate import Gate
from ganglion.server.middleware.auth import PUBLIC_ROUTES, Auth, identity_by_key
from ganglion.server.middleware.principal import KeyRing
from ganglion.server.middleware.scope import principal
from ganglion.server.prometheus import Metrics
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from ganglion.wire.openapi import OPERATIONS
from support.examples import examples

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


def routes() -> list[Route]:
    built = build_routes(capabilities_of(EchoEngine()), ServerSettings(), Gate(1), Metrics())
    return [route for route in built if isinstance(route, Route)]


def paths() -> list[str]:
    return [route.path.replace("{model:path}", "echo") for route in routes()]


def test_the_public_list_is_the_documented_one() -> None:
    assert {path for _, path in PUBLIC_ROUTES} == {"/", "/docs", "/health/live", "/health/ready"}
    documented = {operation.path for operation in OPERATIONS if operation.is_public}
    assert documented == {path for _, path in PUBLIC_ROUTES}


def test_the_document_describes_every_route() -> None:
    served = {
        (method.lower(), route.path.replace(":path", ""))
        for route in routes()
        for method in route.methods - {"HEAD"}
    }
    assert served == {(operation.method, operation.path) for operation in OPERATIONS}


async def test_everything_but_the_public_list_needs_a_key(calling, capsys) -> None:
    pairs = list(
        itertools.product(METHODS, [*paths(), "/nowhere", "/x//", "/health/live/", "/docs/../metrics"])
    )
    denied = 0
    async with calling(api_keys=("secret-1", "secret-2")) as http:
        for method, path in pairs:
            bare = await http.request(method, path)
            if (method, path) in PUBLIC_ROUTES:
                assert bare.status_code == 200, (method, path)
                continue
            assert bare.status_code == 401, (method, path)
            if method != "HEAD":
                error = bare.json()["error"]
                assert "API key" in (error if path.startswith("/api/") else error["message"])
            denied += 1
            for headers in ({"authorization": "Bearer secret-2"}, {"x-api-key": "secret-1"}):
                assert (await http.request(method, path, headers=headers)).status_code != 401
    with capsys.disabled():
        print(f"\naccess matrix: {len(pairs)} route and method pairs, {denied} denied without a key")


async def test_a_wrong_key_is_refused_even_where_no_key_is_needed_to_look(calling) -> None:
    async with calling(api_keys=("secret",)) as http:
        wrong = [
            {"authorization": "Bearer secre"},
            {"authorization": "Bearer secret2"},
            {"authorization": "Basic secret"},
            {"authorization": "secret"},
            {"authorization": "Bearer "},
            {"x-api-key": ""},
            {"x-api-key": "SECRET"},
        ]
        for headers in wrong:
            assert (await http.get("/v1/models", headers=headers)).status_code == 401, headers
        assert (await http.get("/v1/models", headers={"authorization": "bearer  secret "})).status_code == 200


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=64), st.sampled_from([b"authorization", b"x-api-key"]), st.booleans())
async def test_no_made_up_credential_is_accepted(value: bytes, name: bytes, is_bearer: bool) -> None:
    reached: list[object] = []
    sent: list[dict[str, object]] = []

    async def app(scope, receive, send) -> None:
        reached.append(scope)

    async def send(message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "headers": [(name, b"Bearer " + value if is_bearer else value)],
    }
    await Auth(app, identity_by_key(KeyRing(["a-real-key"])))(scope, None, send)
    assert not reached
    assert sent[0]["status"] == 401


async def test_tenants_of_different_keys_differ() -> None:
    tenants = set()

    async def app(scope, receive, send) -> None:
        tenants.add(principal(scope).tenant)

    guard = Auth(app, identity_by_key(KeyRing(["one", "two"])))
    for key in (b"one", b"two", b"one"):
        await guard(
            {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-api-key", key)]}, None, None
        )
    assert len(tenants) == 2
    assert not any("one" in tenant or "two" in tenant for tenant in tenants)


FOREIGN_HOSTS = [
    "evil.com",
    "evil.com:8080",
    "127.0.0.1.evil.com",
    "localhost.evil.com",
    "evil.com#localhost",
    "evil.com/localhost",
    "localhost@evil.com",
    "0.0.0.0:8080",
    "192.168.1.5",
    "[::2]",
    "[fe80::1]",
    "2130706433",
    "0x7f000001",
    "127.1",
    "",
    "localhost:abc",
    "localhost evil.com",
    "*",
    "null",
    "[::1",
]


async def test_foreign_hosts_are_refused_on_a_loopback_bind(calling) -> None:
    async with calling() as http:
        for host, method, path in itertools.product(FOREIGN_HOSTS, ["GET", "POST", "DELETE"], paths()):
            refused = await http.request(method, path, headers={"host": host})
            assert refused.status_code == 403, (host, method, path)
        for host in (
            "localhost",
            "LOCALHOST:9",
            "127.0.0.1",
            "127.8.9.1:1",
            "[::1]",
            "[::1]:8080",
            "localhost.",
        ):
            assert (await http.get("/v1/models", headers={"host": host})).status_code == 200, host
    async with calling(allowed_hosts=("Node.lan",)) as http:
        assert (await http.get("/v1/models", headers={"host": "node.lan:80"})).status_code == 200
    async with calling(host="0.0.0.0", api_keys=("k",), headers={"x-api-key": "k"}) as http:
        assert (await http.get("/v1/models", headers={"host": "node.lan"})).status_code == 200


FOREIGN_ORIGINS = [
    "http://evil.com",
    "https://127.0.0.1.evil.com",
    "http://127.0.0.1:9999",
    "http://127.0.0.1",
    "http://localhost:8080",
    "null",
    "",
    "file://",
    "127.0.0.1:8080",
    "chrome-extension://abc",
    "http://127.0.0.1:8080@evil.com",
]


async def test_foreign_pages_change_nothing(calling) -> None:
    engine = EchoEngine()
    async with calling(engine) as http:
        for origin, method, path in itertools.product(
            FOREIGN_ORIGINS, ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"], paths()
        ):
            refused = await http.request(method, path, json=CHAT, headers={"origin": origin})
            assert refused.status_code == 403, (origin, method, path)
            assert "access-control-allow-origin" not in refused.headers
        own = await http.post("/v1/chat/completions", json=CHAT, headers={"origin": "http://127.0.0.1:8080"})
        assert own.status_code == 200
        seen = await http.get("/v1/models", headers={"origin": "http://evil.com"})
        assert "access-control-allow-origin" not in seen.headers
        outcomes = (await http.get("/metrics")).text
        assert 'ganglion_requests_total{model="echo",outcome="stop"} 1.0' in outcomes


async def test_configured_pages_are_greeted(calling) -> None:
    origin = "https://app.example"
    async with calling(cors_origins=(origin,), api_keys=("k",)) as http:
        preflight = await http.options(
            "/v1/chat/completions",
            headers={
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization, content-type",
            },
        )
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        denied = await http.post("/v1/chat/completions", json=CHAT, headers={"origin": origin})
        assert denied.status_code == 401
        assert denied.headers["access-control-allow-origin"] == origin
        answered = await http.post(
            "/v1/chat/completions", json=CHAT, headers={"origin": origin, "x-api-key": "k"}
        )
        assert answered.status_code == 200
        other = await http.post(
            "/v1/chat/completions", json=CHAT, headers={"origin": "https://app.example.evil"}
        )
        assert other.status_code == 403


def test_a_bind_that_others_reach_needs_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "node.lan", ""):
        with pytest.raises(InsecureBind):
            check_bind(ServerSettings(host=host))
        check_bind(ServerSettings(host=host, api_keys=("k",)))
    for host in ("127.0.0.1", "::1", "localhost"):
        assert is_loopback(host)
        check_bind(ServerSettings(host=host))


def test_a_busy_port_is_told_in_one_line() -> None:
    with bind(ServerSettings(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BindFailed, match=f"Cannot listen on 127.0.0.1:{port}: .*in use"):
            bind(ServerSettings(port=port))
    for settings_ in (ServerSettings(host="no.such.host.invalid"), ServerSettings(port=70000)):
        with pytest.raises(BindFailed):
            bind(settings_)
