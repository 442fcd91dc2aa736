"""What a gateway reserves for a request is never less than what the model itself counts."""

import json

import httpx
import pytest

from ganglion.gateway.proxy.authorize import bound_of
from ganglion.gateway.proxy.routes import route_of
from support.real_node import Node

pytestmark = pytest.mark.model

HOSTILE = (
    "",
    "a",
    " " * 400,
    "\n" * 300,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "0123456789" * 40,
    "zqxjkvbw " * 50,
    "é" * 200,
    "\u200b\u0301" * 100,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 30,
    "\ufdfa\U0001d160" * 60,
    "<|im_start|><|im_end|>" * 40,
    "\u0001\u0002\u007f" * 50,
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "é" * 50,
            "parameters": {"type": "object", "properties": {"a": {"enum": list(range(99))}}},
        },
    }
]


def chats() -> list[dict[str, object]]:
    single = [{"messages": [{"role": "user", "content": text}]} for text in HOSTILE]
    turns = [{"role": role, "content": ""} for _ in range(40) for role in ("user", "assistant")]
    return [
        *single,
        {"messages": [*turns, {"role": "user", "content": "x"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}], "tools": TOOLS},
    ]


def test_no_prompt_has_more_tokens_than_are_reserved_for_it(node: Node) -> None:
    with httpx.Client(base_url=node.url, timeout=60) as http:
        for chat in chats():
            body = json.dumps({"model": "smollm2", **chat}, ensure_ascii=False).encode()
            counted = http.post("/tokenize", content=body, headers={"content-type": "application/json"})
            assert counted.status_code == 200, counted.text
            asked = json.dumps({"model": "smollm2", **chat, "max_tokens": 0}, ensure_ascii=False).encode()
            assert (
                counted.json()["count"] <= bound_of(route_of(b"POST", b"/v1/chat/completions"), asked).tokens
            )
        for text in filter(None, HOSTILE):
            body = json.dumps({"model": "smollm2", "prompt": text}, ensure_ascii=False).encode()
            counted = http.post("/tokenize", content=body, headers={"content-type": "application/json"})
            bound = bound_of(route_of(b"POST", b"/v1/score"), body)
            assert counted.json()["count"] <= bound.tokens, text[:9]
