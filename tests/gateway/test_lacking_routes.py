"""Calls for which a foreign server has no route: put in its own words where it has some, else refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from byte_server import Line, byte_server
from gateways import Running, gateway

from ganglion.gateway.node import NodeSpec
from ganglion.wire.dialects import USUAL_WIRES

Routes = dict[str, Callable[[dict[str, Any]], object]]
LISTED = {"object": "list", "data": [{"id": "m"}]}
HELLO = [{"role": "user", "content": "hello"}]
MESSAGES = {"model": "m", "messages": HELLO}
LLAMA: Routes = {
    "/apply-template": lambda asked: {"prompt": f"<user>{asked['messages'][0]['content']}"},
    "/tokenize": lambda asked: {"tokens": list(asked["content"].encode())},
    "/detokenize": lambda asked: {"content": bytes(asked["tokens"]).decode()},
    "/v1/rerank": lambda asked: {
        "results": [
            {"index": place, "relevance_score": float(len(text))}
            for place, text in enumerate(asked["documents"])
        ]
    },
}
VLLM: Routes = {"/tokenize": lambda asked: {"tokens": [1, 2, 3] if "messages" in asked else [4, 5]}}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages/count_tokens", MESSAGES),
    ("/tokenize", {"model": "m", "prompt": "hey"}),
    ("/tokenize", MESSAGES),
    ("/detokenize", {"model": "m", "tokens": [104, 101, 121]}),
    ("/apply_template", MESSAGES),
    ("/v1/rerank", {"model": "m", "query": "q", "documents": ["a", "bcd"]}),
    ("/v1/responses/input_tokens", {"model": "m", "input": "hello"}),
]


async def serve(line: Line, routes: Routes) -> None:
    """A server that has these routes and no other."""
    while True:
        head = await line.reader.readuntil(b"\r\n\r\n")
        fields = dict(row.lower().split(": ", 1) for row in head.decode().split("\r\n")[1:] if row)
        body = await line.reader.readexactly(int(fields.get("content-length", 0)))
        path = head.decode().split(" ")[1]
        status, said = 404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}
        if path == "/v1/models":
            status, said = 200, LISTED  # type: ignore[assignment]
        elif path in routes:
            status, said = 200, routes[path](json.loads(body))  # type: ignore[assignment]
        data = json.dumps(said).encode()
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
        await line.say(b"HTTP/1.1 %d X\r\n" % status + kind + data)


@asynccontextmanager
async def before(*servers: Routes) -> AsyncIterator[Running]:
    """A gateway over foreign servers with these routes."""
    async with (
        byte_server(lambda line: serve(line, servers[0])) as first,
        byte_server(lambda line: serve(line, servers[-1])) as second,
    ):
        urls = [first.url, second.url][: len(servers)]
        nodes = [NodeSpec(f"n{place}", url, "openai", wires=USUAL_WIRES) for place, url in enumerate(urls)]
        async with gateway(nodes) as running, asyncio.timeout(30):
            while (await running.http.get("/health")).json()["nodes"]["healthy"] < len(nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            yield running


async def answered(running: Running) -> list[Any]:
    return [(await running.http.post(path, json=body)).json() for path, body in CALLS]


async def test_a_server_that_counts_and_ranks_in_its_own_words_is_asked_in_them() -> None:
    async with before(LLAMA) as running:
        counted, text, chat, back, shown, ranked, inputs = await answered(running)
    assert counted == {"input_tokens": len("<user>hello")}
    assert text["tokens"] == [104, 101, 121] and text["count"] == 3
    assert chat["tokens"] == list(b"<user>hello")
    assert back["prompt"] == "hey"
    assert shown["prompt"] == "<user>hello"
    assert [each["index"] for each in ranked["results"]] == [1, 0]
    assert inputs["input_tokens"] == len("<user>hello")


async def test_one_that_only_counts_counts() -> None:
    async with before(VLLM) as running:
        counted, text, chat, back, shown, ranked, inputs = await answered(running)
    assert counted == {"input_tokens": 3}
    assert (text["tokens"], chat["tokens"], inputs["input_tokens"]) == ([4, 5], [1, 2, 3], 3)
    for refused in (back, shown, ranked):
        assert refused["error"]["code"] == "wire_unsupported"


@pytest.mark.parametrize("servers", [({},), ({}, {})], ids=["one", "two"])
async def test_what_no_server_has_is_refused_for_good(servers: tuple[Routes, ...]) -> None:
    async with before(*servers) as running:
        for path, body in (*CALLS, ("/v1/score", {"model": "m", "prompt": "a", "score_ranges": [[0, 1]]})):
            answer = await running.http.post(path, json=body)
            assert answer.status_code == 501, (path, answer.text)
            assert "retry-after" not in answer.headers, path
            assert "'m'" in answer.json()["error"]["message"], path
        info = await running.http.get("/tokenizer_info?model=m")
        assert (info.status_code, "retry-after" in info.headers) == (501, False)
        nodes = (await running.http.get("/fleet")).json()["nodes"]
        assert not any(node["cooling"] for node in nodes)


async def test_another_server_that_has_the_route_is_asked() -> None:
    async with before({}, LLAMA) as running:
        for _ in range(4):  # whichever is asked first
            counted, text, *_ = await answered(running)
            assert counted == {"input_tokens": len("<user>hello")}
            assert text["tokens"] == [104, 101, 121]
