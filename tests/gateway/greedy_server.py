"""A foreign server that takes all it is allowed: every answer as long as the request lets it be, and no end
where the request names none. What it says it used is what it would have used."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from proxy_stage import Asking, ScriptedNode, answer

from ganglion.gateway.node import NodeSpec

ENDLESS = 1_000_000
"""Tokens of an answer that nobody bounded."""


@dataclass(slots=True)
class Greedy:
    """The server's doings; `hold` keeps answers back until it is set."""

    models: tuple[str, ...] = ("m",)
    tells_usage: bool = True
    took: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    hold: asyncio.Event | None = None

    async def script(self, asking: Asking, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = asking.line.split(b" ")[1]
        if path == b"/v1/models":
            writer.write(answer(json.dumps({"data": [{"id": name} for name in self.models]}).encode()))
            return
        if not asking.body:
            writer.write(answer(b"{}", status="404 Not Found"))
            return
        body = json.loads(asking.body)
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.running -= 1
        writer.write(answer(json.dumps(self._answer(path, body)).encode()))

    def _answer(self, path: bytes, body: dict[str, Any]) -> dict[str, Any]:
        prompt, completion = _taken(path, body)
        self.took.append(prompt + completion)
        said: dict[str, Any] = {"id": "x", "object": "y", "created": 1, "model": "m", "data": []}
        turn = {"role": "assistant", "content": "t"}
        said["choices"] = [{"index": 0, "finish_reason": "stop", "text": "t", "message": turn}]
        if self.tells_usage:
            said["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
        return said


def _taken(path: bytes, body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of prompts, one for each byte, and of all answers."""
    if path == b"/v1/embeddings":
        return _read(body["input"])[0], 0
    if path == b"/v1/completions":
        prompt, prompts = _read(body["prompt"])
    else:
        texts = [message["content"] for message in body["messages"]]
        # What a template may say by itself, and around each message.
        prompt, prompts = sum(len(text.encode()) for text in texts) + 400 + 20 * len(texts), 1
    bounds = [body[name] for name in ("max_tokens", "max_completion_tokens", "n_predict") if name in body]
    each = ENDLESS if not bounds or min(bounds) < 0 else max(bounds)
    return prompt, prompts * max(body.get("n", 1), body.get("best_of", 1)) * each


def _read(given: Any) -> tuple[int, int]:
    if isinstance(given, str):
        return len(given.encode()), 1
    if all(isinstance(each, int) for each in given):
        return len(given), 1
    return sum(_read(each)[0] for each in given), len(given)


async def greedy_node(greedy: Greedy, name: str = "greedy", **spec: Any) -> tuple[ScriptedNode, NodeSpec]:
    """The server on a port of its own, as a node; close it at the end."""
    node = ScriptedNode(greedy.script)
    await node.open()
    wires = frozenset(("chat", "completions", "embeddings"))
    return node, NodeSpec(name, node.url, "openai", wires=wires, **spec)
