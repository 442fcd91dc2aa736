"""The wires inside another application, as its author uses them."""

import runpy
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ganglion import Defaults, build_app
from ganglion.core.sampling import Sampling
from ganglion.engines.echo.engine import EchoEngine
from support.played_engine import PlayedEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "mounted.py"
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hello there"}]}
RESPONSES = {"model": "echo", "input": "hello there"}
MESSAGES = {"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": "hello there"}]}


def client(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host")


def mounted(app: object) -> Starlette:
    home = Route("/", lambda _: PlainTextResponse("home"))
    return Starlette(routes=[home, Mount("/some/where", app)])


@pytest.fixture
async def engine() -> AsyncIterator[EchoEngine]:
    echo = EchoEngine()
    await echo.open()
    yield echo
    await echo.close()


async def test_the_example_answers_on_every_wire_of_v1() -> None:
    app = runpy.run_path(str(EXAMPLE))["app"]
    async with client(app) as http:
        chat = await http.post("/llm/v1/chat/completions", json=CHAT | {"model": "shout"})
        assert chat.json()["choices"][0]["message"]["content"] == "HELLO THERE"
        responses = await http.post("/llm/v1/responses", json=RESPONSES | {"model": "shout"})
        assert responses.json()["output"][0]["content"][0]["text"] == "HELLO THERE"
        messages = await http.post("/llm/v1/messages", json=MESSAGES | {"model": "shout"})
        assert messages.json()["content"][0]["text"] == "HELLO THERE"
        listed = await http.get("/llm/v1/models")
        assert [model["id"] for model in listed.json()["data"]] == ["shout"]
        assert (await http.get("/llm/health")).status_code == 404
        assert (await http.post("/llm/api/chat", json=CHAT)).status_code == 404


async def test_what_the_engine_cannot_do_is_a_503_that_says_so() -> None:
    app = runpy.run_path(str(EXAMPLE))["app"]
    async with client(app) as http:
        answer = await http.post("/llm/v1/responses/input_tokens", json=RESPONSES | {"model": "shout"})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "echo", "prompt": "x"}),
        ("/v1/responses", RESPONSES),
        ("/v1/messages", MESSAGES),
        ("/v1/messages/count_tokens", MESSAGES),
        ("/api/chat", CHAT),
        ("/api/embed", {"model": "echo", "input": "x"}),
    ],
)
async def test_without_an_engine_every_route_is_a_503_and_none_crashes(path: str, body: dict) -> None:
    async with client(mounted(build_app())) as http:
        assert (await http.get("/")).text == "home"
        answer = await http.post(f"/some/where{path}", json=body)
        assert answer.status_code == 503
        assert "engine" in answer.text


async def test_errors_keep_their_wire_under_a_path(engine: EchoEngine) -> None:
    async with client(mounted(build_app(engine, api_keys=("secret",)))) as http:
        refused = await http.post("/some/where/v1/messages", json=MESSAGES)
        assert (refused.status_code, refused.json()["type"]) == (401, "error")
        wrong = await http.post("/some/where/v1/messages", json={}, headers={"x-api-key": "secret"})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
        nowhere = await http.get("/some/where/v1/nothing", headers={"x-api-key": "secret"})
        assert nowhere.json()["error"]["code"] == "not_found"


async def test_strict_refuses_what_nobody_knows(engine: EchoEngine) -> None:
    async with client(mounted(build_app(engine, strict=True))) as http:
        answer = await http.post("/some/where/v1/chat/completions", json=CHAT | {"novelty": 1})
    assert answer.json()["error"]["code"] == "unknown_parameter"


async def test_defaults_fill_what_a_request_leaves_open() -> None:
    from ganglion.engines.echo.answer import EchoScript

    played = PlayedEngine([EchoScript(reply="one two three")] * 2)
    await played.open()
    app = build_app(played, defaults=Defaults(Sampling(temperature=0.5, top_k=3), max_tokens=7))
    async with client(mounted(app)) as http:
        await http.post("/some/where/v1/chat/completions", json=CHAT)
        await http.post("/some/where/v1/chat/completions", json=CHAT | {"temperature": 0, "max_tokens": 2})
    first, second = played.requests
    assert (first.sampling.temperature, first.sampling.top_k, first.max_tokens) == (0.5, 3, 7)
    assert (second.sampling.temperature, second.sampling.top_k, second.max_tokens) == (0, 3, 2)
