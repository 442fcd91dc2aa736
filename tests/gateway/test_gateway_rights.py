"""What a key may do at a gateway: every call that is not a GET, by nobody, a user, a node and an admin."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from gateways import Running, echoes, fleet, gateway
from test_gateway_access import keyed, shown
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ganglion.gateway.proxy.routes import route_of
from ganglion.server.gateway.setup import GatewaySetup
from ganglion.server.settings import ServerSettings
from ganglion.store.opening import open_access
from ganglion.wire import openapi
from ganglion.wire.salience import salience_pb2 as pb
from support.hangups import hang_up
from support.rights_table import Row, rows

SALIENCE = pb.DESCRIPTOR.services_by_name["Salience"]
ROLES = ("none", "user", "node", "admin")
CREATE = json.dumps({"type": "response.create", "model": "echo", "input": "hi"})


def test_the_table_names_every_call_of_a_gateway() -> None:
    described = {
        (operation.method.upper(), operation.path)
        for operation in openapi.GATEWAY.operations
        if operation.method != "get"
    }
    described |= {("GRPC", method.name) for method in SALIENCE.methods} | {
        ("SOCKET", "/v1/responses"),
        ("SOCKET", "/responses"),
    }
    assert described == {(row.method, row.path) for row in rows("gateway")}


def test_calls_that_only_ollama_has_and_that_change_a_server_are_an_admins() -> None:
    for path in (b"/api/push", b"/api/create", b"/api/copy", b"/api/delete"):
        assert route_of(b"POST", path).access == route_of(b"DELETE", path).access == "admin"


async def test_every_call_takes_the_right_that_the_table_says(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, user={}, node={"role": "node"}, admin={"role": "admin"})
    async with fleet(storage=storage) as running:
        for row in rows("gateway"):
            for role in ROLES if row.method != "GRPC" else ():  # those stand in test_relay_access.py
                _check(row, role, await _told(running, row, role))


def _check(row: Row, role: str, told: int) -> None:
    if role == "none":
        assert told == 401, row
    elif role in ("admin", row.right):
        assert told not in (401, 403), (row, role, told)
    else:
        assert told == 403, (row, role, told)


async def _told(running: Running, row: Row, role: str) -> int:
    headers = {} if role == "none" else shown(role)
    if row.method == "SOCKET":
        address = running.url.replace("http", "ws", 1) + row.url
        try:
            async with connect(address, additional_headers=headers):
                return 101
        except InvalidStatus as refusal:
            return refusal.response.status_code
    answer = await running.http.request(row.method, row.url, json={}, headers=headers)
    return answer.status_code


async def test_a_user_unloads_no_model_through_a_gateway(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, user={}, admin={"role": "admin"})
    async with fleet("a", "b", storage=storage) as running:
        hidden = b'{"model": "echo", "keep\\u005falive": 0}'
        for path, body in {
            "/api/chat": b'{"model": "echo", "keep_alive": 0}',
            "/api/generate": b'{"model": "echo", "keep_alive": "0m", "messages": [1]}',
            "/api/chat ": hidden,
        }.items():
            answer = await running.http.post(
                path.strip(), content=body, headers=shown("user") | {"content-type": "application/json"}
            )
            assert (answer.status_code, "role admin" in answer.text) == (403, True), path
        asked = {"model": "echo", "keep_alive": 0, "messages": [{"role": "user", "content": "hi"}]}
        said = await running.http.post("/api/chat", json=asked | {"stream": False}, headers=shown("user"))
        assert said.status_code == 200, "nothing is unloaded by a question"
        fleet_of = (await running.http.get("/fleet", headers=shown("admin"))).json()
        assert [node["healthy"] for node in fleet_of["nodes"]] == [True, True]


async def test_a_revoked_key_ends_on_an_open_socket_and_a_kept_connection(tmp_path: Path) -> None:
    storage = await keyed(tmp_path, old={}, other={})
    async with fleet(storage=storage) as running:
        address = running.url.replace("http", "ws", 1) + "/v1/responses"
        http = httpx.AsyncClient(base_url=running.url, headers=shown("old"))
        async with http, connect(address, additional_headers=shown("old")) as socket:
            assert (await http.get("/v1/models")).status_code == 200
            await socket.send(CREATE)
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
            access = await open_access(storage.place)
            await access.revoke("key_old")
            await access.close()
            async with asyncio.timeout(5):
                while (await http.get("/v1/models")).status_code != 401:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await socket.send(CREATE)
            told = json.loads(await socket.recv())
            assert (told["type"], told["status"], told["error"]["code"]) == ("error", 401, "invalid_api_key")
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


async def test_a_configuration_without_keys_opens_no_gateway_that_has_some(caplog) -> None:
    reads = 0
    keys: tuple[str, ...] = ("first",)
    async with echoes("a") as nodes:

        def read() -> GatewaySetup:
            nonlocal reads
            reads += 1
            return GatewaySetup(ServerSettings(api_keys=keys), nodes=nodes)

        async with gateway(nodes, reload=read, api_keys=keys) as running:
            keys = ()
            await hang_up(lambda: reads)
            assert (await running.http.get("/v1/models")).status_code == 401
            assert (await running.http.get("/v1/models", headers=running.as_("first"))).status_code == 200
            assert "no key any more" in caplog.text


async def test_an_operators_caller_key_is_no_admins() -> None:
    async with fleet(api_keys=("caller",), admin_keys=("root",)) as running:
        for key, status in (("caller", 403), ("root", 200)):
            assert (await running.http.get("/fleet", headers=running.as_(key))).status_code == status
        caller = await running.http.get("/v1/models", headers=running.as_("caller"))
        assert caller.status_code == 200
