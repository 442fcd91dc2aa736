"""Names that clients make up leave nothing behind: no list, no metric, no map and no cost grows by them."""

import asyncio
import json
import threading
import time
from collections.abc import Callable

from grpc_calls import connected

from ganglion.core.errors import ModelNotFound
from ganglion.core.request import Request, TextPrompt
from ganglion.engines.echo.engine import EchoEngine
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.failures import (
    MOST_NAMES,
    MOST_TENANTS,
    REMEMBERED_S,
    RecentFailures,
    failed_again,
)
from ganglion.registry.loading.residency import Residency
from ganglion.server.life.storage import StoreTarget
from ganglion.wire.salience import salience_pb2 as pb
from support.composed_node import composed
from support.hub_server import HubServer
from support.raw_http import read_response
from support.waiting import until

MARK = "zzq"
"""Stands in every name that is made up here."""
KEYS = {"api_keys": ("one", "two"), "admin_keys": ("root",)}
PAGES = ("/models", "/v1/models", "/health", "/metrics", "/api/tags", "/api/ps", "/fleet/state", "/discovery")
UNITS, BATCH = 720, 24


def raw(method: str, path: str, headers: dict[str, str], body: object = None) -> bytes:
    """A request as it is written to a connection that stays."""
    data = b"" if body is None else json.dumps(body).encode()
    said = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(data))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (said | headers).items())]
    return "\r\n".join((*lines, "", "")).encode() + data


async def statuses(port: int, requests: list[bytes]) -> list[int]:
    """How requests are answered that go out on one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for request in requests:
        writer.write(request)
        found.append((await read_response(reader)).status)
    writer.close()
    return found


def as_(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_ten_thousand_invented_names_leave_nothing_behind(serving, tmp_path, monkeypatch) -> None:
    names = 0

    def made_up() -> str:
        nonlocal names
        names += 1
        return f"{MARK}{names:06d}"

    with HubServer() as hub:
        engine = composed(tmp_path, monkeypatch, hub.url, "echo")
        async with serving(engine, storage=StoreTarget(":memory:"), **KEYS) as served:
            http = served.http
            await http.post("/v1/chat/completions", json=served.chat(), headers=as_("one"))
            await http.post("/v1/chat/completions", json=served.chat(model=made_up()), headers=as_("one"))

            async def pages() -> dict[str, str]:
                return {path: (await http.get(path, headers=as_("root"))).text for path in PAGES}

            before = await pages()
            said = {"messages": [{"role": "user", "content": "hi"}]}

            def strange(key: str) -> list[bytes]:
                """Fourteen names in four requests; each reaches another part of the node."""
                asked = as_(key) | {"x-request-id": made_up(), "x-ganglion-tenant": made_up()}
                chat = said | {"model": made_up(), "user": made_up()} | {made_up(): 1 for _ in range(6)}
                turn = {"model": "echo", "input": "x", "previous_response_id": f"resp_{made_up()}"}
                return [
                    raw("POST", "/v1/chat/completions", asked, chat),
                    raw("POST", "/v1/responses", asked, turn),
                    raw("GET", f"/v1/conversations/conv_{made_up()}", asked),
                    raw("GET", f"/{made_up()}", as_(made_up())),
                ]

            costs_s = []
            for _ in range(UNITS // BATCH):
                began_s = time.process_time()
                sent = [each for _ in range(BATCH // 2) for key in ("one", "two") for each in strange(key)]
                assert set(await statuses(served.port, sent)) == {404, 401}
                costs_s.append(time.process_time() - began_s)
            async with connected(served.rpc, "one") as rpc:
                for _ in range(50):
                    await rpc.refusal("Generate", pb.GenerateRequest(session_id=made_up()))
                    await rpc.refusal("OpenSession", pb.OpenSessionRequest(model=made_up()))
            for number in range(40):
                body = said | {"model": f"{made_up()}/{made_up()}"}
                asked = as_("one" if number % 2 else "two")
                answer = await http.post("/v1/chat/completions", json=body, headers=asked)
                assert answer.status_code == 404, answer.text
            assert names >= 10_000
            after = await pages()
            assert MARK not in "".join(after.values())
            assert _labels(after["/metrics"]) - _labels(before["/metrics"]) <= _outcomes()
            assert [model.id for model in engine.models()] == ["echo"]
            assert set(engine._table.by_id) == {"echo"}
            assert len(engine._failures) <= 2 * MOST_NAMES
            assert min(costs_s[-3:]) < 2 * min(costs_s[:3]), "the last cost what the first did"


def _labels(page: str) -> set[str]:
    """Each series of a page of metrics, without its value."""
    return {line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}


def _outcomes() -> set[str]:
    """Series that were not there before, of names that are ours: how calls ended."""
    unknown = 'model="unknown"'
    calls = {
        f'ganglion_rpcs_{kind}{{code="NOT_FOUND",method="/salience.v1.Salience/{method}"}}'
        for kind in ("total", "created")
        for method in ("Generate", "OpenSession")
    }
    ends = {
        f'ganglion_requests_{kind}{{{unknown},outcome="model_not_found"}}' for kind in ("total", "created")
    }
    return (
        calls | ends | {"ganglion_session_tokens", "ganglion_session_image_bytes", "ganglion_sessions_open"}
    )


async def test_a_failed_name_is_remembered_for_whoever_asked_and_for_nobody_else(
    serving, tmp_path, monkeypatch
) -> None:
    with HubServer() as hub:
        engine = composed(tmp_path, monkeypatch, hub.url, "echo")
        async with serving(engine, **KEYS) as served:

            async def ask(key: str) -> int:
                body = served.chat(model="org/invented")
                answer = await served.http.post("/v1/chat/completions", json=body, headers=as_(key))
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
                return len(hub.seen)

            first = await ask("one")
            assert first > 0
            assert await ask("one") == first, "it is remembered for a moment"
            second = await ask("two")
            assert second > first, "another tenant is not told what the first asked for"
            load = {"model_id": "org/invented"}
            loaded = await served.http.post("/models/load", json=load, headers=as_("root"))
            assert (loaded.status_code, len(hub.seen) > second) == (404, True), "a load tries at once"
            assert [model.id for model in engine.models()] == ["echo"]


async def test_a_load_that_failed_is_not_listed_as_there(serving, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    (folder / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 64)
    with HubServer() as hub:
        engine = composed(tmp_path, monkeypatch, hub.url, "echo")
        async with serving(engine) as served:
            for name in ("broken", "org/gone"):
                failed = await served.http.post("/models/load", json={"model_id": name})
                assert failed.status_code in (404, 422), failed.text
                await served.http.post("/models/unload", json={"model_id": name})
            for path in PAGES:
                page = (await served.http.get(path)).text
                assert "broken" not in page and "org/gone" not in page, path


async def test_one_tenants_lookups_leave_room_for_anothers(serving, tmp_path, monkeypatch) -> None:
    with HubServer() as hub:
        release = _held_up(hub, monkeypatch)
        engine = composed(tmp_path, monkeypatch, hub.url, "echo")
        async with serving(engine, **KEYS) as served:

            async def ask(key: str, name: str) -> int:
                body = served.chat(model=name)
                return (
                    await served.http.post("/v1/chat/completions", json=body, headers=as_(key))
                ).status_code

            many = [asyncio.create_task(ask("one", f"org/{number}")) for number in range(20)]
            await until(lambda: sum(each.done() for each in many) == 16, 10)
            assert {each.result() for each in many if each.done()} == {503}
            other = asyncio.create_task(ask("two", "org/other"))
            await asyncio.sleep(0.05)
            assert not other.done(), "it waits for its own, and is not refused for the first one's"
            assert [model.id for model in engine.models()] == ["echo"], "nobody sees what is looked for"
            release()
            assert {await each for each in many} == {503, 404}
            assert await other == 404
            assert set(engine._table.by_id) == {"echo"}


def _held_up(hub: HubServer, patch) -> Callable[[], None]:
    """Let the hub's answers wait until the function is called that this gives."""
    gate = threading.Event()
    take = hub.take_fault

    def waiting(part):
        gate.wait(20)
        return take(part)

    patch.setattr(hub, "take_fault", waiting)
    return gate.set


async def test_whoever_leaves_before_a_load_begins_leaves_no_name_behind(tmp_path, monkeypatch) -> None:
    with HubServer() as hub:
        engine = composed(tmp_path, monkeypatch, hub.url, "echo")
        for number in range(20):
            events = engine.generate(Request("1", f"org/name{number}", TextPrompt("hi")))
            await anext(events)
            await events.aclose()
        assert set(engine._table.by_id) == {"echo"}
        await engine.close()


def test_failures_are_bounded_and_forgotten() -> None:
    failures, error = RecentFailures(), ModelNotFound("x")
    for tenant in range(MOST_TENANTS + 50):
        for name in range(MOST_NAMES + 50 if tenant == 300 else 2):
            failures.note(f"t{tenant}", f"m{name}", failed_again(error, None, 0.0))
    assert len(failures) <= MOST_TENANTS * 2 + MOST_NAMES
    assert failures.of("t0", "m1", 0.0) is None, "the oldest tenant is forgotten"
    assert failures.of("t300", "m0", 0.0) is None, "and the oldest names of one that asks for many"
    kept = failures.of("t300", f"m{MOST_NAMES + 49}", 0.0)
    assert kept is not None and kept.error is error
    assert failures.of("t299", "m1", REMEMBERED_S + 2) is None, "and all of them after a while"
    again = failed_again(error, failed_again(error, None, 0.0), 10.0)
    assert (again.count, again.until_s) == (2, 12.0)


async def test_sessions_under_names_that_a_catch_all_takes_are_counted_under_one_model(serving) -> None:
    taking = Residency(
        [Candidate("echo", build_without_options(EchoEngine), aliases=("*",))], free_bytes=lambda: 2**40
    )
    async with serving(taking) as served, connected(served.rpc) as rpc:
        for number in range(20):
            opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model=f"{MARK}{number}"))
            await rpc.generate(opened.session_id, append_tokens=[1], max_tokens=1)
        page = (await served.http.get("/metrics")).text
        assert 'ganglion_completion_tokens_total{model="' in page
        assert MARK not in page
