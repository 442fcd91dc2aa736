"""An upstream that answers at once, so that only the gateway in front of it is measured.

    python -m benchmarks.instant --port 9000

Every request that reaches it is answered from memory: a chat completion as a whole, a stream of 100 events in
one write, or with `"user": "paced"` the same events in a write each. It also answers health probes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import cast

import uvloop

EVENTS = 100
MODEL = "instant"


def _chunk(content: str | None, finish: str | None = None) -> bytes:
    delta = {} if content is None else {"content": content}
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return b"data: " + json.dumps(body | {"choices": choices}, separators=(",", ":")).encode() + b"\n\n"


def _framed(body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TEXT = [_chunk(f" word{number}") for number in range(EVENTS - 2)]
_PARTS = [*_TEXT, _chunk(None, "stop"), b"data: [DONE]\n\n"]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_BURST = _HEAD + b"".join(map(_chunked, _PARTS)) + b"0\r\n\r\n"
_USAGE = {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}
_MESSAGE = {"role": "assistant", "content": "Hello! How can I help you today?"}
_CHOICE = {"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "stop"}
_COMPLETION = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
_WHOLE = _framed(
    json.dumps(_COMPLETION | {"choices": [_CHOICE], "usage": _USAGE}).encode(), "application/json"
)
_MODELS = _framed(
    json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]}).encode(),
    "application/json",
)
_STATE = _framed(
    json.dumps(
        {"boot": "1", "version": 1, "status": "ok", "models": [{"id": MODEL, "status": "loaded"}]}
    ).encode(),
    "application/json",
)
"""The state that a node of ours reports."""
_MISSING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_HEALTHY = _framed(b'{"status":"ok"}', "application/json")


_GET_ANSWERS = {b"/v1/models": _MODELS, b"/health": _HEALTHY, b"/fleet/state": _STATE}


class Instant(asyncio.Protocol):
    """One connection; a request that spans several reads is answered when it is complete."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        head, sign, body = data.partition(b"\r\n\r\n")
        if not sign or len(body) < _length(head):
            self._buffer = data
            return
        self._buffer = b""
        self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET "):
            path = head.split(b" ", 2)[1].partition(b"?")[0]
            return _GET_ANSWERS.get(path, _MISSING)
        if b'"stream":true' not in body and b'"stream": true' not in body:
            return _WHOLE
        if b"paced" not in body:
            return _BURST
        self._next(0)
        return _HEAD

    def _next(self, index: int) -> None:
        # A turn of the loop each: writes of one turn would leave together.
        self._loop.call_soon(self._pace, index)

    def _pace(self, index: int) -> None:
        if self._transport.is_closing():
            return
        if index == len(_PARTS):
            self._transport.write(b"0\r\n\r\n")
            return
        self._transport.write(_chunked(_PARTS[index]))
        self._next(index + 1)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def serve(port: int) -> None:
    """Answer until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Instant(loop), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instant")
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
