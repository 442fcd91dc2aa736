"""A prompt that is too long for the model, told to Codex in the one way that it understands."""

import json

import pytest
from websockets.asyncio.client import connect

from support.responses_invariants import Invariants, check

LONG = {"model": "echo", "input": "word " * 9000}
CODEX = ({"originator": "codex_exec"}, {"user-agent": "codex_cli_rs/0.166.0"})


@pytest.mark.parametrize("headers", CODEX)
async def test_a_stream_ends_in_response_failed(serving, headers: dict[str, str]) -> None:
    async with serving() as served:
        answer = await served.http.post("/v1/responses", json={**LONG, "stream": True}, headers=headers)
    assert answer.status_code == 200
    assert check(answer.content)["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_others_get_a_status(serving, is_streamed: bool) -> None:
    async with serving() as served:
        answer = await served.http.post("/v1/responses", json={**LONG, "stream": is_streamed})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_socket_ends_in_response_failed(serving) -> None:
    async with (
        serving() as served,
        connect(
            f"ws://127.0.0.1:{served.port}/v1/responses",
            additional_headers={"originator": "codex_exec"},
            proxy=None,
        ) as socket,
    ):
        await socket.send(json.dumps({"type": "response.create", **LONG}))
        invariants = Invariants()
        for _ in range(3):
            event = json.loads(await socket.recv())
            invariants.feed(event["type"], event)
        assert invariants.ended()["error"]["code"] == "context_length_exceeded"


async def test_others_get_an_error_on_their_socket(serving) -> None:
    async with (
        serving() as served,
        connect(f"ws://127.0.0.1:{served.port}/v1/responses", proxy=None) as socket,
    ):
        await socket.send(json.dumps({"type": "response.create", **LONG}))
        event = json.loads(await socket.recv())
        assert (event["type"], event["status"]) == ("error", 400)
        assert event["error"]["code"] == "context_length_exceeded"
