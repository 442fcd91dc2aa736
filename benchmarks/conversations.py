"""One conversation three ways: as a session, as chat with its whole history, and in a slot of the peer's.

Every client goes through a relay that counts what it sends, heads and framing included; the relay costs all
of them the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random

import msgspec

from benchmarks.load import Body, ChatRequest, Endpoint, Message, chat
from benchmarks.prompts import words
from benchmarks.salience import Node
from benchmarks.servers import HOST, ServerDied

QUESTION_WORDS = 48
TIMEOUT_S = 600.0
READ_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer. `ttft_s` is from the question being known to the answer's first token."""

    sent_bytes: int
    ttft_s: float
    read_tokens: int
    """Tokens of the prompt that were not cached."""


class Relay:
    """Forwards connections and counts the bytes that clients send."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.listens_on = 0
        self.sent_bytes = 0
        self._pumps: list[asyncio.Task[None]] = []

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection, until the relay is closed or both sides have ended it."""
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._pumps += [
            asyncio.create_task(self._pump(reader, far_writer, is_counted=True)),
            asyncio.create_task(self._pump(far_reader, writer, is_counted=False)),
        ]

    async def close(self) -> None:
        """End every connection."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_counted: bool
    ) -> None:
        try:
            while data := await source.read(READ_BYTES):
                self.sent_bytes += len(data) if is_counted else 0
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass  # the sender or the reader has left
        finally:
            target.close()


@asynccontextmanager
async def relayed(port: int) -> AsyncIterator[Relay]:
    """A relay in front of a port of this machine."""
    relay = Relay(HOST, port)
    server = await asyncio.start_server(relay.forward, HOST, 0)
    relay.listens_on = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()


def questions(seed: str, turns: int) -> list[str]:
    """The questions, turn by turn."""
    random = Random(seed)
    return [words(random, QUESTION_WORDS) for _ in range(turns)]


async def by_session(node: Node, relay: Relay, script: Sequence[str], answer_tokens: int) -> list[Turn]:
    """Each turn has its text tokenized and appends it; the wait for both is in its first token's time."""
    session, length = await node.open(), 0
    turns: list[Turn] = []
    for question in script:
        before, began_s = relay.sent_bytes, time.perf_counter()
        tokens = await node.tokenize(_turn(question, is_first=not turns))
        result = await node.generate(session, tokens, length, answer_tokens)
        length = result.done.total_tokens
        read_tokens = result.done.prompt_tokens - result.done.cached_tokens
        turns.append(Turn(relay.sent_bytes - before, result.token_s[0] - began_s, read_tokens))
    await node.close(session)
    return turns


async def by_chat(endpoint: Endpoint, relay: Relay, script: Sequence[str], answer_tokens: int) -> list[Turn]:
    """Each turn sends all messages so far."""
    near = replace(endpoint, port=relay.listens_on)
    messages: list[Message] = []
    turns: list[Turn] = []
    for question in script:
        messages.append(Message("user", question))
        before = relay.sent_bytes
        record = await chat(near, ChatRequest(tuple(messages), answer_tokens))
        if record.error is not None or record.ttft_s is None:
            raise ServerDied(f"chat failed at turn {len(turns) + 1}: {record.error}")
        messages.append(Message("assistant", record.text))
        read_tokens = record.prompt_tokens - record.cached_tokens
        turns.append(Turn(relay.sent_bytes - before, record.ttft_s, read_tokens))
    return turns


async def by_slot(endpoint: Endpoint, relay: Relay, script: Sequence[str], answer_tokens: int) -> list[Turn]:
    """Each turn sends the whole prompt to the slot of llama.cpp's own server that holds its KV."""
    near = replace(endpoint, port=relay.listens_on)
    prompt = ""
    turns: list[Turn] = []
    for question in script:
        prompt += _turn(question, is_first=not turns)
        before, began_s = relay.sent_bytes, time.perf_counter()
        text, first_s, read_tokens = await _complete(near, prompt, answer_tokens)
        prompt += text
        turns.append(Turn(relay.sent_bytes - before, first_s - began_s, read_tokens))
    return turns


def _turn(question: str, *, is_first: bool) -> str:
    ended = "" if is_first else "<|im_end|>\n"
    return f"{ended}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


class _Timings(msgspec.Struct):
    prompt_n: int = 0


class _Completed(msgspec.Struct):
    content: str = ""
    timings: _Timings | None = None


async def _complete(endpoint: Endpoint, prompt: str, tokens: int) -> tuple[str, float, int]:
    script = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    data = msgspec.json.encode(script | {"cache_prompt": True, "id_slot": 0})
    head = (
        f"POST /completion HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    body, tail, texts, first_s, read_tokens = Body(), b"", list[str](), 0.0, 0
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(head.encode() + data)
        while not body.is_complete and (came := await reader.read(READ_BYTES)):
            *lines, tail = (tail + body.feed(came)).split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and line != b"data: [DONE]":
                    chunk = msgspec.json.decode(line[5:], type=_Completed)
                    first_s = first_s or (time.perf_counter() if chunk.content else 0.0)
                    read_tokens = chunk.timings.prompt_n if chunk.timings else read_tokens
                    texts.append(chunk.content)
        writer.close()
    if body.status != 200 or not first_s:
        raise ServerDied(f"the peer's /completion answered {body.status} and no text")
    return "".join(texts), first_s, read_tokens
