"""Models that come and go, over HTTP."""

import asyncio
import json
from dataclasses import replace

from ganglion.core.device_layout import DeviceLayout
from ganglion.core.engine import LoadOptions
from ganglion.core.errors import HubUnreachable, InsufficientMemory, InvalidValue, LoadFailed, ModelNotFound
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.hub.download import Report
from ganglion.registry.loading import eviction, failures
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.registry.settings import ResidencySettings
from support.waiting import until


def echo(name: str, *aliases: str, delay_s: float = 0.0, **known: object) -> Candidate:
    settings = EchoSettings(name, open_delay_s=delay_s, allow_directives=True)
    return Candidate(
        name, build_without_options(lambda: EchoEngine(settings)), aliases=aliases, engine="echo", **known
    )


def failing(name: str, error: Exception) -> Candidate:
    async def build(options: LoadOptions, *, free_bytes: int):
        raise error

    return Candidate(name, build)


def holding(*candidates: Candidate, configured: tuple[Candidate, ...] = ()) -> Residency:
    """A residency that finds these by name, over the ones that it warms at the start."""
    known = {candidate.id: candidate for candidate in candidates}

    async def find(name: str, *, may_catch_all: bool) -> Candidate | str:
        if name not in known:
            raise ModelNotFound(name)
        return known[name]

    return Residency(configured, free_bytes=lambda: 0, find=find)


async def test_a_model_is_loaded_listed_used_and_unloaded(serving) -> None:
    async with serving(holding(echo("org/one", "small", capabilities=("chat",)))) as served:
        http = served.http
        assert (await http.get("/models")).json() == []
        loaded = await http.post("/models/load", json={"model_id": "org/one", "pinned": True})
        assert (loaded.status_code, loaded.json()) == (200, {"status": "loaded", "model": "org/one"})
        (held,) = (await http.get("/models")).json()
        assert held["id"] == "org/one"
        assert (held["status"], held["pinned"], held["aliases"]) == ("loaded", True, ["small"])
        assert held["last_used"] is not None
        url = (await http.get("/models/org%2Fone/endpoint")).json()["url"]
        assert url == f"{served.url}/v1"
        assert (await http.get("/models/org/one/capabilities")).json()["capabilities"]
        assert (await served.post(model="small")).status_code == 200
        gone = await http.post("/models/unload", json={"model_id": "org/one"})
        assert (gone.status_code, gone.json()["status"]) == (200, "unloaded")
        assert (await http.get("/models")).json()[0]["status"] == "unloaded"
        assert (await http.get("/models/org/one/endpoint")).status_code == 404


async def test_what_cannot_be_loaded_says_why_with_its_status(serving) -> None:
    wrong = {
        "bad-file": (LoadFailed("not a model"), 422, "load_failed"),
        "far": (HubUnreachable("no route"), 502, "hub_unreachable"),
        "big": (InsufficientMemory("too big", free_mb=1, required_mb=9), 503, "insufficient_memory"),
    }
    engine = holding(*(failing(name, error) for name, (error, _, _) in wrong.items()))
    async with serving(engine) as served:
        for name, (_, status, code) in wrong.items():
            answer = await served.http.post("/models/load", json={"model_id": name})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        unknown = await served.http.post("/models/load", json={"model_id": "nowhere"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        short = await served.http.post("/models/load", json={"model_id": "big"})
        assert short.json()["error"]["free_mb"] == 1
        assert short.headers["retry-after"]


async def test_bad_bodies_name_the_parameter(serving) -> None:
    wrong = [
        ({}, "missing_required_parameter", "model_id"),
        ({"model_id": ""}, "invalid_value", "model_id"),
        ({"model_id": "a", "context_length": -1}, "invalid_value", "context_length"),
        ({"model_id": "a", "devices": [0]}, "unsupported_parameter", "devices"),
        ({"model_id": "a", "devices": []}, "invalid_value", "devices"),
        ({"model_id": "a", "devices": ["cpu"]}, "invalid_value", "devices"),
        ({"model_id": "a", "devices": [0, "cuda:0"]}, "invalid_value", "devices"),
        ({"model_id": "a", "devices": 0}, "invalid_value", "devices"),
        ({"model_id": "a", "tensor_parallel": 2}, "unsupported_parameter", "tensor_parallel"),
        ({"model_id": "a", "tensor_parallel": 0}, "invalid_value", "tensor_parallel"),
        ({"model_id": "a", "tensor_parallel": 10**9}, "invalid_value", "tensor_parallel"),
        ({"model_id": "a", "tensor_parallel": True}, "invalid_value", "tensor_parallel"),
        ({"model_id": "a", "pipeline_parallel": 2}, "unsupported_parameter", "pipeline_parallel"),
        ({"model_id": "a", "data_parallel": 2}, "unsupported_parameter", "data_parallel"),
        ({"model_id": "a", "executor": "ray"}, "unsupported_parameter", "executor"),
        ({"model_id": "a", "executor": "slurm"}, "invalid_value", "executor"),
    ]
    async with serving(holding(echo("a"))) as served:
        for body, code, param in wrong:
            error = (await served.http.post("/models/load", json=body)).json()["error"]
            assert (error["code"], error["param"]) == (code, param), body
        assert (await served.http.get("/models")).json() == [], "nothing was begun, and nothing is remembered"
        usual = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1, "executor": "mp"}
        assert (await served.http.post("/models/load", json={"model_id": "a", **usual})).status_code == 200
        assert (await served.http.post("/models/unload", json={})).status_code == 400
        unknown = await served.http.post("/models/unload", json={"model_id": "b"})
        assert unknown.status_code == 404


async def test_a_layout_reaches_the_engine_and_a_loaded_model_has_no_other(serving) -> None:
    built: list[DeviceLayout] = []

    async def build(options: LoadOptions, *, free_bytes: int) -> EchoEngine:
        built.append(options.layout)
        return EchoEngine(EchoSettings("wide", open_delay_s=0.1))

    def check(options: LoadOptions) -> None:
        if options.layout.devices == ("7",):
            raise InvalidValue("There is no device 7 here; there are 0 (card), 1 (card).", param="devices")

    planned = DeviceLayout(tensor_parallel=2)
    candidate = Candidate("wide", build, engine="echo", layout=planned, check=check)
    async with serving(holding(candidate)) as served:

        async def load(**fields: object) -> tuple[int, str | None]:
            answer = await served.http.post("/models/load", json={"model_id": "wide", **fields})
            return answer.status_code, answer.json().get("error", {}).get("param")

        assert await load(devices=[7]) == (400, "devices")
        assert not built
        asked = {"devices": ["cuda:1", 0], "pipeline_parallel": 1}
        loading = asyncio.create_task(load(**asked))
        await until(lambda: bool(built))
        assert await load(tensor_parallel=4) == (400, "tensor_parallel"), "nor one that is being loaded"
        assert await loading == (200, None)
        assert built == [DeviceLayout(pipeline_parallel=1, devices=("0", "1"))]
        assert await load(**asked, tensor_parallel=2) == (200, None)
        assert await load(tensor_parallel=1) == (400, "tensor_parallel")
        assert await load(devices=[0]) == (400, "devices")
        assert await load(executor="ray") == (400, "executor")
        await served.http.post("/models/unload", json={"model_id": "wide"})
        assert await load(tensor_parallel=4) == (200, None)


async def test_an_engine_that_does_not_run_a_model_is_refused_by_name_loaded_or_not(serving) -> None:
    async with serving(holding(echo("a"))) as served:

        async def refused(**fields: object) -> tuple[int, str, str]:
            answer = await served.http.post("/models/load", json={"model_id": "a", **fields})
            error = answer.json()["error"]
            assert "retry-after" not in answer.headers, "it would never help"
            return answer.status_code, error["code"], error["param"]

        for _ in ("unloaded", "loaded"):
            for engine in ("candle", "mistralrs", "echo2", ""):
                assert await refused(engine=engine) == (400, "invalid_value", "engine"), engine
            assert await refused(harness="mistralrs") == (400, "unsupported_parameter", "harness")
            assert (await served.http.post("/models/load", json={"model_id": "a"})).status_code == 200
        own = served.engine.models()[0].engine
        again = await served.http.post("/models/load", json={"model_id": "a", "engine": own})
        assert again.status_code == 200


async def test_without_waiting_the_answer_comes_at_once_and_the_list_shows_the_rest(serving) -> None:
    async with serving(holding(echo("slow", delay_s=0.2))) as served:
        answer = await served.http.post("/models/load?wait=false", json={"model_id": "slow"})
        assert answer.status_code == 202
        assert (await served.http.get("/models")).json()[0]["status"] == "loading"
        await until(lambda: served.engine.models()[0].status == "loaded")


async def test_a_load_streams_its_bytes_and_its_end(serving) -> None:
    async def fetch(options: LoadOptions, report: Report) -> None:
        for done in range(0, 101, 10):
            report(done, 100)
            await asyncio.sleep(0.05)

    broken = replace(failing("broken", LoadFailed("not a model")), fetch=fetch)
    async with serving(holding(replace(echo("far"), fetch=fetch), broken)) as served:
        events = await streamed(served.http, "far")
        assert events[-1] == ("loaded", {"status": "loaded", "model": "far"})
        downloading = [data for name, data in events if name == "progress" and data["bytes_total"]]
        assert downloading
        assert all(data["status"] == "downloading" for data in downloading)
        assert [data["bytes_done"] for data in downloading] == sorted(
            data["bytes_done"] for data in downloading
        )
        name, data = (await streamed(served.http, "broken"))[-1]
        assert (name, data["error"]["code"]) == ("error", "load_failed")


async def streamed(http, model: str) -> list[tuple[str, dict]]:
    headers = {"accept": "text/event-stream"}
    answer = await http.post("/models/load", json={"model_id": model}, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in frames]


async def test_a_load_goes_on_when_whoever_asked_for_it_leaves(serving) -> None:
    async with serving(holding(echo("slow", delay_s=0.2))) as served:
        asking = asyncio.create_task(served.http.post("/models/load", json={"model_id": "slow"}))
        await until(lambda: bool(served.engine.models()))
        await asyncio.sleep(0.05)
        asking.cancel()
        await until(lambda: served.engine.models()[0].status == "loaded")


async def test_the_server_listens_while_it_warms_and_health_sorts_every_model_into_one_list(serving) -> None:
    configured = (echo("first", delay_s=0.2), failing("bad", LoadFailed("not a model")), echo("last"))
    async with serving(holding(configured=configured)) as served:
        activation = (await served.http.get("/health")).json()["activation"]
        assert activation["state"] == "pre_warming"
        assert activation["in_progress"] == "first"
        assert activation["pending"] == ["bad", "last"]
        await until(lambda: served.engine.activation().is_over)
        activation = (await served.http.get("/health")).json()["activation"]
        assert activation == {
            "state": "ready",
            "pending": [],
            "in_progress": None,
            "completed": ["first", "last"],
            "failed": [{"model": "bad", "error": "not a model"}],
        }


async def test_an_engine_whose_models_are_fixed_says_so(serving) -> None:
    async with serving() as served:
        answer = await served.http.post("/models/load", json={"model_id": "echo"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")


async def readiness(served) -> tuple[int, str]:
    answer = await served.http.get("/health/ready")
    assert (await served.http.get("/health")).json()["status"] == answer.json()["status"]
    return answer.status_code, answer.json()["status"]


async def test_a_node_is_ready_while_its_only_model_sleeps_and_not_while_it_first_wakes(
    serving, monkeypatch
) -> None:
    monkeypatch.setattr(eviction, "WATCH_S", 0.01)
    asleep = echo("brief", delay_s=0.3, keep_alive_s=0.05)
    async with serving(Residency([asleep], [echo("other")], free_bytes=lambda: 0)) as served:
        assert await readiness(served) == (503, "loading"), "what is to be warm is waited for"
        await until(lambda: served.engine.activation().is_over)
        assert await readiness(served) == (200, "ok")
        await until(lambda: served.engine.models()[0].status == "unloaded")
        assert await readiness(served) == (200, "ok")
        answer = asyncio.create_task(served.post(model="brief"))
        await until(lambda: served.engine.models()[0].status == "loading")
        assert await readiness(served) == (200, "ok"), "it will answer"
        assert (await answer).status_code == 200


async def test_a_node_that_loads_nothing_by_itself_is_ready_once_something_is_loaded(serving) -> None:
    settings = ResidencySettings(auto_load=False)
    async with serving(Residency((), [echo("one")], free_bytes=lambda: 0, settings=settings)) as served:
        assert (await readiness(served))[0] == 503
        await served.http.post("/models/load", json={"model_id": "one"})
        assert await readiness(served) == (200, "ok")
        await served.http.post("/models/unload", json={"model_id": "one"})
        assert (await readiness(served))[0] == 503


async def test_a_node_whose_model_failed_is_ready_again_when_it_would_be_tried(serving, monkeypatch) -> None:
    monkeypatch.setattr(failures, "PAUSES_S", (0.3,))
    broken = failing("broken", LoadFailed("not a model"))
    async with serving(Residency((), [broken], free_bytes=lambda: 0)) as served:
        assert await readiness(served) == (200, "ok"), "nobody has tried yet"
        assert (await served.post(model="broken")).status_code == LoadFailed.status
        assert await readiness(served) == (503, "failed")
        await asyncio.sleep(0.35)
        assert await readiness(served) == (200, "degraded")
