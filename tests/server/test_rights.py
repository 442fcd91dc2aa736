"""What a key may do on a node: every call that is not a GET, by nobody, a user and an admin."""

import json

import grpc
import httpx
import pytest
from grpc_calls import SALIENCE, Rpc, connected
from starlette.routing import Route, WebSocketRoute
from test_grpc_access import status_of
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ganglion.core.request import Request
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.server.capabilities import capabilities_of
from ganglion.server.gate import Gate
from ganglion.server.life.serve import Reloaded
from ganglion.server.life.storage import StoreTarget
from ganglion.server.prometheus import Metrics
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from ganglion.wire.salience import salience_pb2 as pb
from support.hangups import hang_up
from support.rights_table import rows
from support.waiting import until

KEYS = {"api_keys": ("use",), "admin_keys": ("root",)}
MEMORY = StoreTarget(":memory:")


def held(*names: str) -> Residency:
    """Echoes that come and go."""
    made = [
        Candidate(name, build_without_options(lambda name=name: EchoEngine(EchoSettings(model_id=name))))
        for name in names
    ]
    return Residency(made, free_bytes=lambda: 2**40)


def as_(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_table_names_every_call_of_a_node() -> None:
    built = build_routes(capabilities_of(EchoEngine()), ServerSettings(), Gate(1), Metrics())
    served = {
        (method, route.path.replace(":path", ""))
        for route in built
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"GET", "HEAD"}
    }
    served |= {("SOCKET", route.path) for route in built if isinstance(route, WebSocketRoute)}
    served |= {("GRPC", method.name) for method in SALIENCE.methods}
    assert served == {(row.method, row.path) for row in rows("node")}


async def test_every_call_takes_the_right_that_the_table_says(serving) -> None:
    checked = 0
    async with serving(held("echo"), storage=MEMORY, **KEYS) as served, connected(served.rpc) as rpc:
        for row in rows("node"):
            for key in (None, "use", "root"):
                told = await _told(served, rpc, row, key)
                if key is None:
                    assert told == 401, row
                elif row.right == "admin" and key == "use":
                    assert told == 403, row
                else:
                    assert told not in (401, 403), (row, key)
                checked += 1
    assert checked == 3 * len(rows("node"))


async def _told(served, rpc: Rpc, row, key: str | None) -> int:
    """The status that a call is answered with, as HTTP has it."""
    headers = {} if key is None else as_(key)
    if row.method == "GRPC":
        code = await status_of(rpc.channel, SALIENCE.methods_by_name[row.path], key)
        refused = {grpc.StatusCode.UNAUTHENTICATED: 401, grpc.StatusCode.PERMISSION_DENIED: 403}
        return refused.get(code, 200)
    if row.method == "SOCKET":
        try:
            async with connect(f"ws://127.0.0.1:{served.port}{row.url}", additional_headers=headers):
                return 101
        except InvalidStatus as refusal:
            return refusal.response.status_code
    answer = await served.http.request(row.method, row.url, json={}, headers=headers)
    if answer.status_code == 403:
        error = answer.json()["error"]
        told = error if row.path.startswith("/api/") else error["message"]
        assert "may not" in told
        if not row.path.startswith("/api/"):
            assert (error["type"], error["code"]) == ("permission_error", "permission_denied")
    return answer.status_code


async def test_a_user_changes_no_model_and_an_admin_does(serving) -> None:
    engine = held("echo", "other")
    async with serving(engine, **KEYS) as served:

        async def status(key: str, path: str, **body: object) -> int:
            return (await served.http.post(path, json=body, headers=as_(key))).status_code

        def loaded() -> list[str]:
            return [model.id for model in engine.models() if model.status == "loaded"]

        await until(lambda: loaded() == ["echo", "other"])
        changes = [
            ("/models/load", {"model_id": "echo"}),
            ("/models/unload", {"model_id": "echo"}),
            ("/models/unload", {"model_id": "echo", "force": True}),
            ("/api/pull", {"model": "echo"}),
            ("/api/chat", {"model": "echo", "keep_alive": 0}),
            ("/api/generate", {"model": "echo", "keep_alive": "0s"}),
        ]
        for path, body in changes:
            assert await status("use", path, **body) == 403, path
        assert loaded() == ["echo", "other"]
        for path, body in changes:
            assert await status("root", path, **body) == 200, path
        assert loaded() == ["other"]
        asked = {"messages": [{"role": "user", "content": "hi"}], "model": "echo"}
        assert await status("use", "/v1/chat/completions", **asked) == 200, "asking loads, as ever"


async def test_without_keys_everybody_may_do_everything(serving) -> None:
    async with serving(held("echo")) as served:
        assert (await served.http.post("/models/unload", json={"model_id": "echo"})).status_code == 200


@pytest.mark.parametrize(
    ("key", "asked", "given"),
    [("use", -5, 0), ("use", 7, 7), ("root", -5, -5), ("root", 7, 7)],
)
async def test_a_users_requests_are_as_urgent_as_its_key_may_be_on_every_wire(
    serving, key: str, asked: int, given: int
) -> None:
    engine = Noting()
    ask = {"model": "echo", "priority": asked}
    said = [{"role": "user", "content": "hi"}]
    async with serving(engine, storage=MEMORY, **KEYS) as served:
        http = httpx.AsyncClient(base_url=served.url, headers=as_(key))
        async with http, connected(served.rpc, key) as rpc:
            calls = {
                "/v1/chat/completions": {"messages": said},
                "/v1/completions": {"prompt": "hi"},
                "/v1/responses": {"input": "hi"},
                "/v1/messages": {"messages": said, "max_tokens": 3},
            }
            for path, body in calls.items():
                answer = await http.post(path, json=ask | body)
                assert answer.status_code == 200, (path, answer.text)
            session = await rpc.opened()
            await rpc.generate(session, append_tokens=[1], max_tokens=1, priority=asked)
    assert engine.noted == {given}
    assert engine.count == len(calls) + 1


class Noting(EchoEngine):
    """Notes how urgent each request is that reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: set[int] = set()
        self.count = 0

    def generate(self, request: Request):
        self._note(request.priority)
        return super().generate(request)

    def continue_tokens(self, model, request):
        self._note(request.priority)
        return super().continue_tokens(model, request)

    def _note(self, priority: int) -> None:
        self.noted.add(priority)
        self.count += 1


async def test_a_more_urgent_priority_can_be_granted(serving) -> None:
    engine = Noting()
    async with serving(engine, most_urgent=-3, **KEYS) as served:
        body = served.chat("hi", priority=-9)
        await served.http.post("/v1/chat/completions", json=body, headers=as_("use"))
    assert engine.noted == {-3}


class Operator:
    """Takes keys away, by SIGHUP."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.reads = 0

    def read(self) -> Reloaded:
        self.reads += 1
        return Reloaded(self.keys, lambda: None)

    async def leaves(self, *keys: str) -> None:
        self.keys = keys
        await hang_up(lambda: self.reads)


async def test_a_revoked_key_ends_on_every_connection_that_is_open(serving) -> None:
    operator = Operator("old", "new")
    create = json.dumps({"type": "response.create", "model": "echo", "input": "hi"})
    async with serving(reload=operator.read, api_keys=operator.keys) as served:
        address = f"ws://127.0.0.1:{served.port}/v1/responses"
        http = httpx.AsyncClient(base_url=served.url, headers=as_("old"))
        async with (
            http,
            connect(address, additional_headers=as_("old")) as socket,
            connected(served.rpc, "old") as rpc,
        ):
            session = await rpc.opened()
            assert (await http.get("/v1/models")).status_code == 200
            await socket.send(create)
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
            await operator.leaves("new")
            assert (await http.get("/v1/models")).status_code == 401, "the same connection is kept alive"
            refusal = await rpc.refusal("Generate", pb.GenerateRequest(session_id=session, max_tokens=1))
            assert refusal.code() == grpc.StatusCode.UNAUTHENTICATED
            await socket.send(create)
            told = json.loads(await socket.recv())
            assert (told["type"], told["status"]) == ("error", 401)
            assert told["error"]["code"] == "invalid_api_key"
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


async def test_a_configuration_without_keys_opens_no_server_that_has_some(serving, caplog) -> None:
    operator = Operator("old")
    async with serving(reload=operator.read, api_keys=operator.keys) as served:
        await operator.leaves()
        assert (await served.http.get("/v1/models")).status_code == 401
        assert (await served.http.get("/v1/models", headers=as_("old"))).status_code == 200
        assert "no key any more" in caplog.text
        await operator.leaves("new")
        assert (await served.http.get("/v1/models", headers=as_("new"))).status_code == 200


async def test_keys_that_came_by_a_reload_are_not_lost_by_the_next(serving) -> None:
    operator = Operator()
    async with serving(reload=operator.read) as served:
        assert (await served.http.get("/v1/models")).status_code == 200
        await operator.leaves("first")
        await operator.leaves()
        assert (await served.http.get("/v1/models")).status_code == 401
