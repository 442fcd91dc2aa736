"""An explicit zero is honoured on every wire: no token at all, and the likeliest token alone."""

import json
from typing import Any

import pytest
from responding import played

ASKED = [{"role": "user", "content": "one two three"}]
WIRES: dict[str, tuple[dict[str, object], str]] = {
    "/v1/chat/completions": ({"messages": ASKED}, "max_tokens"),
    "/v1/chat/completions?": ({"messages": ASKED}, "max_completion_tokens"),
    "/v1/completions": ({"prompt": "one two three"}, "max_tokens"),
    "/v1/responses": ({"input": "one two three", "store": False}, "max_output_tokens"),
    "/v1/messages": ({"messages": ASKED}, "max_tokens"),
}


def told(path: str, body: dict[str, Any]) -> tuple[str, str, int, int]:
    """The text, how it ended, and the tokens that were read and made."""
    match path:
        case "/v1/responses":
            usage = body["usage"]
            reason = body["incomplete_details"]["reason"]
            return str(body["output"] or ""), reason, usage["input_tokens"], usage["output_tokens"]
        case "/v1/messages":
            usage = body["usage"]
            return (
                str(body["content"] or ""),
                body["stop_reason"],
                usage["input_tokens"],
                usage["output_tokens"],
            )
        case _:
            (choice,) = body["choices"]
            usage = body["usage"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            return text or "", choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize("path", WIRES)
async def test_no_token_at_all_reads_the_prompt_and_ends_by_its_length(serving, path: str) -> None:
    fields, name = WIRES[path]
    engine = played()
    async with serving(engine) as served:
        body = {"model": "echo", **fields, name: 0}
        whole = await served.http.post(path, json=body)
        assert whole.status_code == 200, whole.text
        text, reason, read, made = told(path.rstrip("?"), whole.json())
        assert (text, read, made) == ("", 3, 0)
        assert reason in ("length", "max_tokens", "max_output_tokens")
        streamed = await served.http.post(path, json=body | {"stream": True})
        assert "one" not in streamed.text
        assert reason in streamed.text
    assert [request.max_tokens for request in engine.requests] == [0, 0]


@pytest.mark.parametrize("path", [*WIRES, "/api/chat"])
async def test_a_share_of_zero_is_handed_on(serving, path: str) -> None:
    engine = played()
    fields = {"messages": ASKED, "options": {"top_p": 0}} if path == "/api/chat" else WIRES[path][0]
    more = {"top_p": 0, "max_tokens": 9} if path == "/v1/messages" else {"top_p": 0}
    async with serving(engine) as served:
        body = {"model": "echo", **fields} | ({} if path == "/api/chat" else more)
        answer = await served.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        if path == "/v1/responses":
            assert json.loads(answer.content)["top_p"] == 0
    assert engine.requests[0].sampling.top_p == 0
