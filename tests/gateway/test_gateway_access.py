"""Who is let into a gateway, over every route it has: keys, roles, tenants, and what a client may not say."""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
from gates import key, secret_of
from gateways import Running, fleet
from starlette.routing import Route, WebSocketRoute

from ganglion.core.engine import ModelState
from ganglion.engines.echo.engine import EchoEngine
from ganglion.gateway.access.keys import ApiKeys
from ganglion.gateway.proxy.routes import route_of
from ganglion.server.capabilities import capabilities_of
from ganglion.server.endpoints.info import InfoRoutes
from ganglion.server.gate import Gate
from ganglion.server.gateway.fleet_endpoints import FleetEndpoints, GatewayHealthEndpoints
from ganglion.server.life.storage import StoreTarget
from ganglion.server.middleware.auth import PUBLIC_ROUTES
from ganglion.server.middleware.principal import Principal
from ganglion.server.routes import wire_routes
from ganglion.server.settings import ServerSettings
from ganglion.store.opening import open_access
from ganglion.wire import openapi

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
ADMIN = "sk-operator"
ASKED = [{"role": "user", "content": "hi"}]
CHAT = {"model": "echo", "messages": ASKED}
WIRES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "echo", "prompt": "hi"},
    "/v1/responses": {"model": "echo", "input": "hi"},
    "/v1/messages": {"model": "echo", "messages": ASKED, "max_tokens": 9},
    "/api/chat": {"model": "echo", "messages": ASKED, "stream": False},
}
STRANGE = (
    "/nowhere",
    "/shared",
    "/notice",
    "/health/live/",
    "/docs/../metrics",
    "/%66leet",
    "/fleet/shared",
    "/fleet/state",
    "/",
)


def paths() -> list[str]:
    names = {"{id}": "resp_1", "{item}": "msg_1", "{model}": "echo"}
    found = []
    for operation in openapi.GATEWAY.operations:
        path = operation.path
        for placeholder, name in names.items():
            path = path.replace(placeholder, name)
        found.append(path)
    return sorted({*found, *STRANGE})


async def keyed(folder: Path, **keys: dict[str, Any]) -> StoreTarget:
    """A database with a key for each name; what a client sends is `gk-NAME`."""
    place = folder / "gateway.db"
    access = await open_access(place)
    for name, limits in keys.items():
        await access.add_key(key(name, **limits))
    await access.close()
    return StoreTarget(place)


def shown(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret_of(name).decode()}"}


def test_the_document_describes_every_route_and_no_other() -> None:
    settings, gate, ports = ServerSettings(), Gate(1), capabilities_of(EchoEngine())
    doors = [kind(*(None for _ in fields(kind))) for kind in (GatewayHealthEndpoints, FleetEndpoints)]
    built = [
        *InfoRoutes(ports.engine, settings, gate, openapi.GATEWAY).routes(),
        *(route for door in doors for route in door.routes()),
        *wire_routes(ports, settings, gate),
    ]
    served = {
        (method.lower(), route.path.replace(":path", ""))
        for route in built
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(operation.method, operation.path) for operation in openapi.GATEWAY.operations}
    assert served | {("get", "/metrics")} == described
    assert [route.path for route in built if isinstance(route, WebSocketRoute)] == [
        "/v1/responses",
        "/responses",
    ]
    public = {
        (operation.method, operation.path) for operation in openapi.GATEWAY.operations if operation.is_public
    }
    assert public == {(method.lower(), path) for method, path in PUBLIC_ROUTES if method == "GET"}
    for method, path in described:
        route = route_of(method.upper().encode(), path.encode())
        assert (route.access == "public") == ((method, path) in public), path


async def test_everything_but_the_public_list_needs_a_key() -> None:
    async with fleet(admin_keys=(ADMIN,)) as gateway:

        async def check(method: str, path: str) -> None:
            bare = await gateway.http.request(method, path)
            if (method, path) in PUBLIC_ROUTES:
                assert bare.status_code == 200, (method, path)
                return
            assert bare.status_code == 401, (method, path, bare.text)
            assert bare.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                error = bare.json()["error"]
                assert "API key" in (error if path.startswith("/api/") else error["message"])
            if path != "/fleet/move":
                known = await gateway.http.request(method, path, headers={"x-api-key": ADMIN})
                assert known.status_code not in (401, 403), (method, path)

        for path in paths():
            await asyncio.gather(*(check(method, path) for method in METHODS))


async def test_a_key_may_do_what_its_role_says(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, user={}, box={"role": "node"}, root={"role": "admin"})
    join = {"name": "z", "url": "http://127.0.0.1:9", "boot": "b"}
    async with fleet(storage=storage) as gateway:
        for path in paths():
            methods = ("GET", "POST", "DELETE") if path.startswith(("/fleet", "/metrics", "/models")) else ()
            for method in methods:
                status = (await gateway.http.request(method, path, headers=shown("user"))).status_code
                assert status == 403, (method, path)
        for path in ("/fleet", "/metrics", "/fleet/state", "/v1/models", "/health", "/v1/responses/resp_1"):
            assert (await gateway.http.get(path, headers=shown("box"))).status_code == 403, path
        for path in ("/fleet/drain", "/fleet/move", "/fleet/load", "/v1/chat/completions"):
            assert (await gateway.http.post(path, json={}, headers=shown("box"))).status_code == 403, path
        lease = await gateway.http.post("/fleet/join", json=join, headers=shown("box"))
        assert lease.status_code == 200, lease.text
        refused = await gateway.http.post("/fleet/join", json=join, headers=shown("user"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        left = {"name": "z", "epoch": lease.json()["epoch"]}
        assert (await gateway.http.post("/fleet/leave", json=left, headers=shown("box"))).status_code == 200
        for path in ("/fleet", "/metrics"):
            assert (await gateway.http.get(path, headers=shown("root"))).status_code == 200
        for path in ("/fleet/shared", "/fleet/state", "/models", "/models/load", "/discovery"):
            assert (await gateway.http.get(path, headers=shown("root"))).status_code in (404, 405), path
    joins = [line for line in "".join(gateway.lines).splitlines() if "path=/fleet/join" in line]
    assert [line.partition("status=")[2][:3] for line in joins if "method=POST" in line] == ["403", "403"]


async def test_nobody_acts_as_another_tenant(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, ann={}, bob={})
    lies = {
        "x-ganglion-tenant": "tenant-ann",
        "x-ganglion-key": "key_ann",
        "x-ganglion-priority": "-900",
        "X-Ganglion-Tenant": "tenant-ann",
        "x-ganglion-epoch": "7",
        "x-ganglion-usage": "1",
    }
    async with fleet(storage=storage) as gateway:
        http = gateway.http
        made = (await http.post("/v1/responses", json=WIRES["/v1/responses"], headers=shown("ann"))).json()
        talk = (await http.post("/v1/conversations", json={}, headers=shown("ann"))).json()
        stored = (f"/v1/responses/{made['id']}", f"/v1/conversations/{talk['id']}")
        for path in stored:
            assert (await http.get(path, headers=shown("ann"))).status_code == 200
            assert (await http.get(path, headers=shown("bob") | lies)).status_code == 404
            assert (await http.delete(path, headers=shown("bob") | lies)).status_code == 404
            assert (await http.get(path, headers=lies)).status_code == 401
        follow = {"model": "echo", "input": "and?", "previous_response_id": made["id"]}
        answer = await http.post("/v1/responses", json=follow, headers=shown("bob") | lies)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "previous_response_not_found")
        spoken = await http.post(
            "/v1/chat/completions", json=CHAT | {"stream": True}, headers=shown("bob") | lies
        )
        assert spoken.text.endswith("data: [DONE]\n\n"), "the usage of streams is between us"
        assert not [name for name in spoken.headers if name.startswith("x-ganglion")]
        for path in stored:
            assert (await http.get(path, headers=shown("ann"))).status_code == 200
    logged = [line for line in "".join(gateway.lines).splitlines() if "chat/completions" in line]
    assert [("tenant=tenant-bob" in line, "tenant-ann" in line) for line in logged] == [(True, False)]


async def test_a_limited_key_sees_its_models_and_gets_no_other(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, free={}, echo={"models": ("echo",)}, other={"models": ("other",)})
    async with fleet(storage=storage) as gateway:
        http = gateway.http

        async def listed(name: str) -> list[str]:
            openai = (await http.get("/v1/models", headers=shown(name))).json()["data"]
            claude = shown(name) | {"anthropic-version": "2023-06-01"}
            anthropic = (await http.get("/v1/models", headers=claude)).json()["data"]
            ollama = (await http.get("/api/tags", headers=shown(name))).json()["models"]
            ids = [model["id"] for model in openai]
            assert ids == [model["id"] for model in anthropic] == [model["name"] for model in ollama]
            return ids

        assert await listed("free") == await listed("echo") == ["echo"]
        assert await listed("other") == []
        assert (await http.get("/v1/models/echo", headers=shown("echo"))).status_code == 200
        assert (await http.get("/v1/models/echo", headers=shown("other"))).status_code == 404
        show = await http.post("/api/show", json={"model": "echo"}, headers=shown("other"))
        assert show.status_code == 404
        for path, body in WIRES.items():
            assert (await http.post(path, json=body, headers=shown("echo"))).status_code == 200, path
            refused = await http.post(path, json=body, headers=shown("other"))
            assert refused.status_code == 403, (path, refused.text)
        assert "echo" not in (await http.get("/")).text, "nor does whoever has no key"


def test_a_model_is_listed_under_the_names_that_a_key_may_say() -> None:
    model = ModelState(
        id="m", engine="", status="loaded", context_length=1, created_s=0, aliases=("small", "gpt")
    )
    (found,) = Principal(models=frozenset({"gpt", "small"})).visible([model])
    assert (found.id, found.aliases) == ("small", ("gpt",))
    assert Principal(models=frozenset({"n"})).visible([model]) == ()
    assert Principal().visible([model]) == (model,)


async def test_what_a_key_may_see_follows_the_database(tmp_path: Path) -> None:
    access = await open_access(tmp_path / "a.db")
    keys = ApiKeys(access)
    await keys.load()
    assert (keys.models_of(""), keys.models_of("key_app")) == (None, None)
    await access.add_key(key(models=("m",)))
    await keys.load()
    assert keys.models_of("key_app") == frozenset({"m"})
    await access.close()


def envelope(path: str, answer: httpx.Response) -> str:
    """The message of a refusal, whose shape this checks."""
    body = answer.json()
    if path.startswith("/api/"):
        assert body.keys() == {"error"}
        return str(body["error"])
    error = body["error"]
    if path == "/v1/messages":
        assert (body["type"], bool(body["request_id"])) == ("error", True)
        assert error["type"].endswith("_error")
    else:
        assert error.keys() >= {"message", "type", "param", "code"}
    return str(error["message"])


async def test_errors_are_told_in_the_words_of_their_wire() -> None:
    async def told(gateway: Running, path: str, body: object, **keywords: Any) -> tuple[int, str]:
        answer = await gateway.http.post(path, json=body, **keywords)
        assert answer.headers["x-request-id"] == answer.headers["request-id"]
        return answer.status_code, envelope(path, answer)

    async with fleet(admin_keys=(ADMIN,)) as gateway:
        for path, body in WIRES.items():
            mine = {"headers": gateway.as_(ADMIN)}
            status, message = await told(gateway, path, body | {"model": "nobody"}, **mine)
            assert (status, "nobody" in message) == (404, True), path
            assert (await told(gateway, path, {"messages": 1}, **mine))[0] == 400, path
            assert (await told(gateway, path, body))[0] == 401, path
            status, message = await told(gateway, path, body, headers={"host": "evil.example"})
            assert status == 403, path
            not_json = await gateway.http.post(path, content=b"{", **mine)
            assert not_json.status_code in (400, 415), path
            envelope(path, not_json)
            wrong = await gateway.http.put(path, json=body, **mine)
            assert wrong.status_code == 405, path
            envelope(path, wrong)
        missing = await gateway.http.get("/v1/responses/resp_none", headers=gateway.as_(ADMIN))
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_request_is_logged_once_and_a_poll_is_not(caplog: Any) -> None:
    caplog.set_level("INFO", "ganglion.request")
    async with fleet() as gateway:
        for path in ("/v1/models", "/fleet"):
            assert (await gateway.http.get(path)).status_code == 200
    assert [record.message for record in caplog.records if "/v1/models" in record.message] == []
    assert [record.message for record in caplog.records if "/fleet" in record.message] == []
    assert "".join(gateway.lines).count("path=/v1/models ") == 1
