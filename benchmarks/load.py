"""A streaming chat client that records when each piece of text arrived.

It shares the measured machine's cores with the server, hence the raw protocol: an HTTP library would cost
more than a millisecond a request, and that would be measured as the server's.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from dataclasses import dataclass
from typing import Any, cast

import msgspec

TIMEOUT_S = 900.0
CHAT_PATH = "/v1/chat/completions"
LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, and the name of its model."""

    host: str
    port: int
    model: str


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str
    image: bytes = b""
    """A PNG file that stands before the text."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion to request: exactly `max_tokens` tokens, even where the model would end earlier."""

    messages: tuple[Message, ...]
    max_tokens: int
    seed: int = 0
    json_schema: str | None = None
    """The schema of the answer, as JSON text."""


@dataclass(frozen=True, slots=True)
class Record:
    """The course of one request. Times are seconds on one monotonic clock; `error` is None on success."""

    sent_s: float
    ended_s: float
    delta_s: tuple[float, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """From the request being sent to its first text."""
        return self.delta_s[0] - self.sent_s if self.delta_s else None

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The silences between pieces of text, as (from, to)."""
        return list(itertools.pairwise(self.delta_s))


def request_bytes(endpoint: Endpoint, chat_request: ChatRequest) -> bytes:
    """The whole request; two servers whose model has one name get the same body, byte for byte."""
    body = msgspec.json.encode(
        _format(chat_request)
        | {
            "model": endpoint.model,
            "messages": [
                {"role": message.role, "content": _content(message)} for message in chat_request.messages
            ],
            "max_tokens": chat_request.max_tokens,
            "temperature": 0,
            "seed": chat_request.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = (
        f"POST {CHAT_PATH} HTTP/1.1\r\n"
        f"Host: {endpoint.host}:{endpoint.port}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _content(message: Message) -> str | list[dict[str, object]]:
    if not message.image:
        return message.content
    url = f"data:image/png;base64,{base64.b64encode(message.image).decode()}"
    image: dict[str, object] = {"type": "image_url", "image_url": {"url": url}}
    return [image, {"type": "text", "text": message.content}]


def _format(chat_request: ChatRequest) -> dict[str, object]:
    if chat_request.json_schema is None:
        return {}
    schema = {"name": "answer", "schema": msgspec.Raw(chat_request.json_schema.encode())}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Body:
    """The body of one HTTP/1.1 response, fed raw bytes: chunked, of a stated length, or until the end."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.is_complete = False
        self._buffer = bytearray()
        self._is_chunked = False
        self._left: int | None = None
        """Bytes left of the body, or of the current chunk."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes off the wire, give back the bytes of the body among them."""
        self._buffer += data
        if self.status is None and not self._read_head():
            return b""
        return self._read_chunks() if self._is_chunked else self._read_plain()

    def end(self) -> None:
        """The connection is closed: the end of a body without a stated length, and of no other."""
        if self.status is not None and not self._is_chunked and self._left is None:
            self.is_complete = True

    def _read_head(self) -> bool:
        head, separator, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not separator:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ", 2)[1])
        for line in lines:
            name, _, value = line.partition(":")
            match name.strip().lower():
                case "transfer-encoding":
                    self._is_chunked = "chunked" in value.lower()
                case "content-length":
                    self._left = int(value)
        self._buffer = bytearray(rest)
        return True

    def _read_plain(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.is_complete = self._left == 0
        return data

    def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        while not self.is_complete:
            if self._left is None:
                line_end = self._buffer.find(b"\r\n")
                if line_end < 0:
                    break
                self._left = int(self._buffer[:line_end].split(b";")[0], 16)
                del self._buffer[: line_end + 2]
            # A chunk is whole only with its own line end, and the last one is empty.
            if len(self._buffer) < self._left + 2:
                break
            parts.append(bytes(self._buffer[: self._left]))
            self.is_complete = self._left == 0
            del self._buffer[: self._left + 2]
            self._left = None
        return b"".join(parts)


class Answer:
    """One streamed chat completion, fed raw bytes with the time they came; pure: it reads no clock."""

    def __init__(self, sent_s: float, expected_tokens: int) -> None:
        self._sent_s = sent_s
        self._expected_tokens = expected_tokens
        self._body = Body()
        self._tail = b""
        self._delta_s: list[float] = []
        self._texts: list[str] = []
        self._usage = _Usage()
        self._is_done = False
        self._error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self._body.is_complete

    @property
    def status(self) -> int | None:
        """The HTTP status, or None before there is one."""
        return self._body.status

    def feed(self, data: bytes, now_s: float) -> None:
        *lines, self._tail = (self._tail + self._body.feed(data)).split(b"\n")
        if self._body.status not in (None, 200):
            # Not an event stream: keep all of it for the error message.
            self._tail = b"\n".join([*lines, self._tail])
            return
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now_s)

    def end(self) -> None:
        self._body.end()

    def fail(self, error: str) -> None:
        """Something outside the response went wrong; an error of the server's own takes precedence."""
        self._error = self._error or error

    def record(self, now_s: float) -> Record:
        details = self._usage.prompt_tokens_details
        return Record(
            sent_s=self._sent_s,
            ended_s=now_s,
            delta_s=tuple(self._delta_s),
            text="".join(self._texts),
            prompt_tokens=self._usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            completion_tokens=self._usage.completion_tokens,
            error=self._failure(),
        )

    def _take(self, payload: bytes, now_s: float) -> None:
        if payload == b"[DONE]":
            self._is_done = True
            return
        chunk = _decode_chunk(payload)
        if chunk.error is not None:
            self.fail(msgspec.json.encode(chunk.error).decode()[:LONGEST_ERROR])
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta.content:
                self._delta_s.append(now_s)
                self._texts.append(choice.delta.content)

    def _failure(self) -> str | None:
        if self._error:
            return self._error
        if self._body.status is None:
            return "no response before the connection ended"
        if self._body.status != 200:
            data = self._tail.decode(errors="replace")[:LONGEST_ERROR]
            return f"HTTP {self._body.status}: {data}"
        if not self._body.is_complete or not self._is_done:
            return "the stream ended without [DONE]"
        if self._usage.completion_tokens != self._expected_tokens:
            return f"expected {self._expected_tokens} tokens, got {self._usage.completion_tokens}"
        return None


class _Exchange(asyncio.Protocol):
    """One connection: writes the request, feeds the answer, and is finished when either side is."""

    def __init__(self, request: bytes, answer: Answer, finished: asyncio.Future[None]) -> None:
        self._request = request
        self._answer = answer
        self._finished = finished
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        try:
            self._answer.feed(data, now_s)
        except (ValueError, IndexError) as error:  # msgspec's decode errors are ValueErrors too
            self._answer.fail(f"unreadable response: {error}")
            self._finish()
            return
        if self._answer.is_complete:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer.end()
        self._finish()

    def _finish(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if not self._finished.done():
            self._finished.set_result(None)


async def exchange(
    endpoint: Endpoint, chat_request: ChatRequest, timeout_s: float = TIMEOUT_S
) -> tuple[Record, int | None]:
    """Send one request and read its response to the end; its record and the HTTP status."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()
    request = request_bytes(endpoint, chat_request)
    # Connecting counts: a server with a short accept queue makes its clients wait there.
    answer = Answer(time.perf_counter(), chat_request.max_tokens)
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Exchange(request, answer, finished), endpoint.host, endpoint.port
            )
            await finished
    except TimeoutError:
        answer.fail(f"no end within {timeout_s:g} s")
    except OSError as error:
        answer.fail(f"cannot connect: {error}")
    finally:
        if transport is not None:
            transport.close()
    return answer.record(time.perf_counter()), answer.status


async def chat(endpoint: Endpoint, chat_request: ChatRequest, timeout_s: float = TIMEOUT_S) -> Record:
    """Send one request and read its response to the end; what went wrong is in the record."""
    record, _ = await exchange(endpoint, chat_request, timeout_s)
    return record
