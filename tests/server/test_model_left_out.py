"""A request may leave its model out where exactly one is loaded, on every wire; a blank name is none."""

import json
from typing import Any

import grpc
import pytest
from grpc_calls import connected
from test_rights import held
from websockets.asyncio.client import connect

from ganglion.server.life.storage import StoreTarget
from ganglion.wire.salience import salience_pb2 as pb
from support.waiting import until

SAID = [{"role": "user", "content": "hello there"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/responses/compact": {"input": "hello"},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/v1/embeddings": {"input": "hello"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"prompt": "a b c", "score_ranges": [[1, 2]]},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1]},
    "/apply_template": {"messages": SAID},
    "/api/chat": {"messages": SAID, "stream": False},
    "/api/generate": {"prompt": "hello", "stream": False},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
}


def message_of(path: str, answer: Any) -> str:
    error = answer.json()["error"]
    return error if path.startswith("/api/") else error["message"]


async def test_the_only_loaded_model_is_meant_on_every_wire(serving) -> None:
    async with serving(held("echo"), storage=StoreTarget(":memory:")) as served:
        for path, body in CALLS.items():
            answer = await served.http.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            if "model" in answer.json():
                assert answer.json()["model"] == "echo", path
        streamed = await served.http.post("/v1/chat/completions", json={"messages": SAID, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")


async def test_where_several_or_none_are_loaded_the_answer_names_them(serving) -> None:
    engine = held("one", "two")
    async with serving(engine, storage=StoreTarget(":memory:")) as served:
        await until(lambda: all(model.status == "loaded" for model in engine.models()))
        for path, body in CALLS.items():
            answer = await served.http.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert "loaded are one, two" in message_of(path, answer), path
        error = (await served.http.post("/v1/chat/completions", json={"messages": SAID})).json()["error"]
        assert (error["code"], error["param"]) == ("missing_required_parameter", "model")
        for name in ("one", "two"):
            await served.http.post("/models/unload", json={"model_id": name})
        answer = await served.http.post("/v1/chat/completions", json={"messages": SAID})
        assert (answer.status_code, "no model is loaded" in answer.text) == (400, True)


@pytest.mark.parametrize("name", ["", " ", "  \t", "\u2003"])
async def test_a_blank_name_is_no_unknown_model(serving, name: str) -> None:
    async with serving(held("echo"), storage=StoreTarget(":memory:")) as served:
        for path, body in CALLS.items():
            answer = await served.http.post(path, json=body | {"model": name})
            assert answer.status_code == 400, (path, name, answer.text)
        for path in ("/models/load", "/models/unload"):
            answer = await served.http.post(path, json={"model_id": name})
            assert (answer.status_code, "not blank" in answer.text or not name) == (400, True), answer.text


async def test_sessions_and_sockets_may_leave_it_out_too(serving) -> None:
    async with serving(held("echo")) as served:
        async with connected(served.rpc) as rpc:
            opened = await rpc.call("OpenSession", pb.OpenSessionRequest())
            assert opened.session_id
            tokens = (await rpc.call("Tokenize", pb.TokenizeRequest(text="a b"))).tokens
            assert len(tokens) == 2
            assert (await rpc.call("Detokenize", pb.DetokenizeRequest(tokens=tokens))).text == "a b"
            refused = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="  "))
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with connect(f"ws://127.0.0.1:{served.port}/v1/responses") as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
            while (event := json.loads(await socket.recv()))["type"] != "response.completed":
                assert event["type"] != "error", event
            assert event["response"]["model"] == "echo"
