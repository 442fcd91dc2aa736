"""A client of bytes that knows every wire: what it asked, what it heard, and how that ended."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from support.raw_http import request_bytes

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
}
WIRES = tuple(PATHS)


@dataclass
class Said:
    """One answer, as far as it came."""

    head: bytes = b""
    body: bytes = b""
    is_ended: bool = False
    """Whether HTTP says that this is all of it."""
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1]) if self.head else 0

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}

    @property
    def events(self) -> list[tuple[str, str]]:
        """Name and data of each event of a stream that is whole."""
        found = re.findall(r"(?:event: (\S+)\n)?data: (.*)\n\n", self.body.decode())
        return [(name, data) for name, data in found]

    @property
    def document(self) -> dict[str, object]:
        parsed: dict[str, object] = json.loads(self.body)
        return parsed

    @property
    def code(self) -> str:
        """Of an error with an OpenAI envelope."""
        error = self.document["error"]
        assert isinstance(error, dict)
        return str(error["code"])


async def ask(
    port: int,
    path: str,
    body: object = None,
    *,
    key: str | None = None,
    said: Said | None = None,
    timeout_s: float = 30.0,
    on_bytes: Callable[[Said], bool] | None = None,
    headers: Sequence[str] = (),
) -> Said:
    """One request on a connection of its own, read to its end or until `on_bytes` has enough and leaves."""
    said = said or Said()
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        try:
            writer.write(request_bytes(path, body, key, *headers))
            await _hear(reader, said, on_bytes)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # `is_ended` says so
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
    return said


async def _hear(reader: asyncio.StreamReader, said: Said, on_bytes: Callable[[Said], bool] | None) -> None:
    said.head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    if on_bytes is not None and on_bytes(said):
        return
    if "content-length" in said.headers:
        said.body = await reader.readexactly(int(said.headers["content-length"]))
        said.began.set()
        said.is_ended = True
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        said.body += (await reader.readexactly(size + 2))[:-2]
        if not said.began.is_set() and heard_text(said.body):
            said.began.set()
        if on_bytes is not None and on_bytes(said):
            return
    await reader.readexactly(2)
    said.is_ended = True


def heard_text(body: bytes) -> bool:
    return re.search(rb'"(content|text|delta)":"[^"]', body) is not None


def asking(wire: str, text: str, *, is_stream: bool = True, **more: object) -> dict[str, object]:
    """The body of a request on a wire for an echo of this text."""
    messages = [{"role": "user", "content": text}]
    match wire:
        case "chat":
            usage = {"stream_options": {"include_usage": True}} if is_stream else {}
            asked: dict[str, object] = {"messages": messages, "stream": is_stream, **usage}
        case "completions":
            usage = {"stream_options": {"include_usage": True}} if is_stream else {}
            asked = {"prompt": text, "max_tokens": 4000, "stream": is_stream, **usage}
        case "messages":
            asked = {"messages": messages, "max_tokens": 4000, "stream": is_stream}
        case "responses":
            asked = {"input": text, "stream": is_stream, "store": False}
        case "ollama":
            asked = {"messages": messages, "stream": is_stream}
        case _:
            raise AssertionError(wire)
    return {"model": "echo", **asked, **more}


def text_of(wire: str, said: Said, *, is_stream: bool = True) -> str:
    """All the text that came, of a stream as of a whole answer."""
    if not is_stream:
        return _whole_text(wire, json.loads(said.body))
    if wire == "ollama":
        lines = [json.loads(line) for line in said.body.decode().splitlines()]
        return "".join(line["message"]["content"] for line in lines if "message" in line)
    parts: list[str] = []
    for _, data in said.events:
        if data == "[DONE]":
            continue
        event = json.loads(data)
        if wire == "chat":
            parts += [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
        elif wire == "completions":
            parts += [choice["text"] for choice in event.get("choices", ())]
        elif event["type"] in ("content_block_delta", "response.output_text.delta"):
            delta = event["delta"]
            parts.append(delta["text"] if isinstance(delta, dict) else delta)
    return "".join(parts)


def _whole_text(wire: str, document: dict[str, object]) -> str:
    found = document
    match wire:
        case "chat":
            return str(found["choices"][0]["message"]["content"])  # type: ignore[index]
        case "completions":
            return str(found["choices"][0]["text"])  # type: ignore[index]
        case "messages":
            return "".join(part["text"] for part in found["content"])  # type: ignore[attr-defined]
        case "responses":
            items = [item for item in found["output"] if item["type"] == "message"]  # type: ignore[attr-defined]
            return "".join(part["text"] for item in items for part in item["content"])
        case _:
            return str(found["message"]["content"])  # type: ignore[index]


def usage_of(wire: str, said: Said, *, is_stream: bool = True) -> tuple[int, int]:
    """Prompt and completion tokens, as the answer itself tells them."""
    if wire == "ollama":
        last = json.loads(said.body.decode().splitlines()[-1])
        return last["prompt_eval_count"], last["eval_count"]
    if not is_stream:
        return _counts(json.loads(said.body)["usage"])
    told = (0, 0)
    for _, data in said.events:
        if data == "[DONE]":
            continue
        event = json.loads(data)
        usage = event.get("usage") or (event.get("response") or event.get("message") or {}).get("usage")
        if usage:
            counts = _counts(usage)
            told = (max(told[0], counts[0]), counts[1])
    return told


def _counts(usage: dict[str, int]) -> tuple[int, int]:
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    return prompt, usage.get("completion_tokens", usage.get("output_tokens", 0))


def is_whole(wire: str, said: Said) -> bool:
    """Whether a stream ended as its wire ends one that went well."""
    if not said.is_ended or said.status != 200:
        return False
    match wire:
        case "chat" | "completions":
            return said.body.endswith(b"data: [DONE]\n\n")
        case "messages":
            return said.events[-1][0] == "message_stop"
        case "responses":
            return said.events[-2][0] == "response.completed" and said.events[-1][1] == "[DONE]"
        case _:
            return bool(json.loads(said.body.splitlines()[-1]).get("done"))


def is_told_broken(wire: str, said: Said) -> bool:
    """Whether a stream ended as its wire ends one that failed, and says so once."""
    if not said.is_ended or said.status != 200:
        return False
    if wire == "ollama":
        lines = [json.loads(line) for line in said.body.splitlines()]
        return "error" in lines[-1] and not any(line.get("done") for line in lines)
    events = said.events
    if wire == "responses":
        *events, (_, ending) = events
        if ending != "[DONE]":
            return False
    name, data = events[-1]
    event = json.loads(data)
    match wire:
        case "chat" | "completions":
            return "error" in event and b"[DONE]" not in said.body
        case "messages":
            return name == "error" and event["type"] == "error" and b"message_stop" not in said.body
        case _:
            numbers = [json.loads(data)["sequence_number"] for _, data in events]
            is_counted = all(after == before + 1 for before, after in pairwise(numbers))
            return name == "response.failed" and is_counted and b"response.completed" not in said.body
