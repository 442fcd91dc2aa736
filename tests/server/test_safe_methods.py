"""GET and HEAD change nothing: whoever sends them, no model is loaded, let go or looked for."""

import itertools

from starlette.routing import Route

from ganglion.engines.echo.engine import EchoEngine
from ganglion.server.capabilities import capabilities_of
from ganglion.server.gate import Gate
from ganglion.server.life.storage import StoreTarget
from ganglion.server.middleware.auth import PUBLIC_ROUTES
from ganglion.server.prometheus import Metrics
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from support.composed_node import composed
from support.hub_server import HubServer
from support.waiting import until

FOREIGN = {
    "another site": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    "an image": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    "another port": {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    "a sandbox": {"origin": "null"},
    "a link": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    "two origins": {"origin": "http://127.0.0.1, https://evil.example"},
}
OURS = {
    "no browser": {},
    "our page": {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},
    "typed": {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
}
NAMES = ("org/unknown", "other", "invented")


def safe_routes() -> list[tuple[str, str]]:
    """Every GET and HEAD, with a name that nobody knows, one that is not loaded, or none in each place."""
    built = build_routes(capabilities_of(EchoEngine()), ServerSettings(), Gate(1), Metrics())
    found = []
    for route in built:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) & {"GET", "HEAD"}):
                found += [(method, url) for url in _urls(route.path)]
    assert len(found) > 40
    return found


def _urls(path: str) -> list[str]:
    if "{model:path}" in path:
        return [path.replace("{model:path}", name.replace("/", "%2F")) for name in NAMES]
    path = path.replace("{id}", "resp_1").replace("{item}", "msg_1")
    return [path, *(f"{path}?model={name}" for name in NAMES)]


async def test_no_get_and_no_head_loads_evicts_or_asks_the_hub(serving, tmp_path, monkeypatch) -> None:
    with HubServer() as hub:
        engine = composed(tmp_path, monkeypatch, hub.url, "echo", "other", **{"residency.max_models": 2})
        async with serving(engine, storage=StoreTarget(":memory:")) as served:

            def statuses() -> list[tuple[str, str]]:
                return [(model.id, model.status) for model in engine.models()]

            await until(lambda: statuses() == [("echo", "loaded"), ("other", "loaded")])
            await served.http.post("/models/unload", json={"model_id": "other"})
            before = statuses()
            routes, origin = safe_routes(), {"host": f"127.0.0.1:{served.port}"}
            for (method, url), (who, headers) in itertools.product(routes, FOREIGN.items()):
                answer = await served.http.request(method, url, headers=origin | headers)
                is_public = (method, url.partition("?")[0]) in PUBLIC_ROUTES
                assert (answer.status_code == 403) != is_public, (method, url, who, answer.status_code)
                assert "access-control-allow-origin" not in answer.headers
            for (method, url), (who, headers) in itertools.product(routes, OURS.items()):
                answer = await served.http.request(method, url, headers=origin | headers)
                assert answer.status_code != 403, (method, url, who)
                assert answer.status_code < 500 or "health/ready" in url, (method, url, who)
            assert statuses() == before, "nothing was loaded, and nothing made room"
            assert hub.seen == [], "and no hub was asked"


async def test_a_configured_origin_may_look_and_its_images_may_not(serving) -> None:
    friend = {"origin": "https://friend.example", "sec-fetch-site": "cross-site"}
    async with serving(cors_origins=("https://friend.example",)) as served:
        seen = await served.http.get("/v1/models", headers=friend)
        assert seen.headers["access-control-allow-origin"] == "https://friend.example"
        image = await served.http.get("/v1/models", headers={"sec-fetch-site": "cross-site"})
        assert image.status_code == 403
    async with serving(cors_origins=("*",)) as served:
        image = await served.http.get("/v1/models", headers={"sec-fetch-site": "cross-site"})
        assert image.status_code == 200


async def test_looking_at_a_model_says_why_it_cannot_be_seen(serving, tmp_path, monkeypatch) -> None:
    with HubServer() as hub:
        engine = composed(tmp_path, monkeypatch, hub.url, "echo", "other")
        async with serving(engine) as served:

            async def told(query: str) -> tuple[int, str]:
                answer = await served.http.get(f"/tokenizer_info{query}")
                return answer.status_code, answer.json().get("error", {}).get("message", "")

            await until(lambda: all(each.status == "loaded" for each in engine.models()))
            assert (await told(""))[0] == 400, "two are loaded"
            await served.http.post("/models/unload", json={"model_id": "other"})
            assert (await told(""))[0] == 200
            assert await told("?model=other") == (
                404,
                "The model 'other' is not loaded. A GET loads none: ask it something, or have it loaded.",
            )
            assert (await told("?model=nobody"))[0] == 404
            assert (await told("?model=%20%20"))[0] == 400
