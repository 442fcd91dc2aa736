"""GET and HEAD at a gateway: no node loads anything, and a foreign page sees public pages only."""

from dataclasses import dataclass

from gateways import fleet, gateway
from remote_nodes import listening
from test_gateway_access import paths

from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.node import NodeSpec
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.server.middleware.auth import PUBLIC_ROUTES

FOREIGN = (
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "same-site"},
    {"origin": "null"},
)


@dataclass
class Loads:
    """Counts what a node loads."""

    built: int = 0

    def engine(self) -> Residency:
        def make() -> EchoEngine:
            self.built += 1
            return EchoEngine(EchoSettings(model_id="cold"))

        warm = Candidate("echo", build_without_options(EchoEngine))
        return Residency((warm,), (Candidate("cold", build_without_options(make)),), free_bytes=lambda: 2**40)


async def test_no_get_and_no_head_loads_a_model_anywhere() -> None:
    loads = Loads()
    engine = loads.engine()
    async with listening(engine, gateway_keys=("between-us",)) as url:
        node = NodeSpec("a", url, api_key="between-us")
        async with gateway([node], node_key="between-us") as running:
            for path in paths():
                for method in ("GET", "HEAD"):
                    for query in ("", "?model=cold", "?model=invented", "?model=org/unknown"):
                        answer = await running.http.request(method, path + query)
                        assert answer.status_code not in (403, 500), (method, path, query)
            looked = await running.http.get("/tokenizer_info?model=cold")
            assert (looked.status_code, looked.json()["error"]["code"]) == (404, "model_not_found")
            assert "not loaded" in looked.json()["error"]["message"]
            assert loads.built == 0
            body = {"model": "cold", "messages": [{"role": "user", "content": "hi"}]}
            said = await running.http.post("/v1/chat/completions", json=body)
            assert (said.status_code, loads.built) == (200, 1), "a question loads it, as ever"


async def test_a_foreign_page_sees_public_pages_and_nothing_else() -> None:
    async with fleet(cors_origins=("https://friend.example",)) as running:
        host = {"host": running.url.removeprefix("http://")}
        for path in paths():
            for method in ("GET", "HEAD"):
                for headers in FOREIGN:
                    answer = await running.http.request(method, path, headers=host | headers)
                    is_public = (method, path) in PUBLIC_ROUTES
                    assert (answer.status_code == 403) != is_public, (method, path, headers)
        friend = {"origin": "https://friend.example", "sec-fetch-site": "cross-site"}
        assert (await running.http.get("/v1/models", headers=host | friend)).status_code == 200
        page = {"sec-fetch-site": "same-origin"}
        assert (await running.http.get("/v1/models", headers=host | page)).status_code == 200


async def test_a_model_may_be_left_out_where_one_is_loaded_in_the_fleet() -> None:
    said = [{"role": "user", "content": "hi"}]
    calls = {
        "/v1/chat/completions": {"messages": said},
        "/v1/responses": {"input": "hi"},
        "/v1/messages": {"messages": said, "max_tokens": 9},
        "/api/chat": {"messages": said, "stream": False},
        "/tokenize": {"prompt": "hi"},
    }
    async with fleet("a", "b") as running:
        for path, body in calls.items():
            answer = await running.http.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            blank = await running.http.post(path, json=body | {"model": "  "})
            assert blank.status_code == 400, (path, blank.text)
        assert (await running.http.get("/tokenizer_info")).status_code == 200
    async with gateway() as running:
        answer = await running.http.post("/v1/chat/completions", json={"messages": said})
        assert (answer.status_code, "no model is loaded" in answer.text) == (400, True)
