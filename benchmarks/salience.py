"""A client of the session wire that records when each token came, over nothing but grpc and the messages.

Like the HTTP one it shares the measured machine's cores with the server: there is no library in between.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from benchmarks.load import Record
from benchmarks.servers import ServerDied
from ganglion.wire.salience import salience_pb2 as pb
from ganglion.wire.salience.service import method_path

TIMEOUT_S = 900.0
TTL_S = 3600.0


@dataclass(frozen=True, slots=True)
class GenerateRecord:
    """One Generate: when it was sent, when each token came, and its Done event."""

    sent_s: float
    token_s: tuple[float, ...]
    tokens: tuple[int, ...]
    done: pb.Done
    ended_s: float

    @property
    def elapsed_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.sent_s

    def record(self) -> Record:
        """The same as a record of the HTTP client."""
        done = self.done
        counts = done.prompt_tokens, done.cached_tokens, done.completion_tokens
        return Record(self.sent_s, self.ended_s, self.token_s, "", *counts)


class Node:
    """The calls of one channel."""

    def __init__(self, channel: grpc.aio.Channel, model: str) -> None:
        self._model = model

        def unary(name: str, request: type, reply: type) -> grpc.aio.UnaryUnaryMultiCallable:
            return channel.unary_unary(
                method_path(name),
                request_serializer=request.SerializeToString,
                response_deserializer=reply.FromString,
            )

        self._open = unary("OpenSession", pb.OpenSessionRequest, pb.OpenSessionResponse)
        self._fork = unary("ForkSession", pb.ForkSessionRequest, pb.ForkSessionResponse)
        self._close = unary("CloseSession", pb.CloseSessionRequest, pb.CloseSessionResponse)
        self._tokenize = unary("Tokenize", pb.TokenizeRequest, pb.TokenizeResponse)
        self._generate = channel.unary_stream(
            method_path("Generate"),
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateEvent.FromString,
        )

    async def open(self) -> str:
        """A fresh session's id."""
        request = pb.OpenSessionRequest(model=self._model, ttl_s=TTL_S)
        return str((await self._open(request, timeout=TIMEOUT_S)).session_id)

    async def fork(self, session: str) -> str:
        """Another session with the same tokens."""
        request = pb.ForkSessionRequest(session_id=session, ttl_s=TTL_S)
        return str((await self._fork(request, timeout=TIMEOUT_S)).session_id)

    async def close(self, session: str) -> None:
        """Close a session."""
        await self._close(pb.CloseSessionRequest(session_id=session), timeout=TIMEOUT_S)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """A text's tokens, control tokens that are written out included."""
        request = pb.TokenizeRequest(model=self._model, text=text, parse_special=True)
        return tuple((await self._tokenize(request, timeout=TIMEOUT_S)).tokens)

    async def generate(
        self,
        session: str,
        append: Sequence[int],
        offset: int,
        max_tokens: int,
        *,
        readout: Sequence[tuple[int, int]] = (),
    ) -> GenerateRecord:
        """Append and generate exactly so many tokens, greedily."""
        request = pb.GenerateRequest(
            session_id=session,
            append_tokens=append,
            offset=offset,
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            readout_ranges=[pb.Range(start=start, end=end) for start, end in readout],
        )
        times: list[float] = []
        tokens: list[int] = []
        done: pb.Done | None = None
        sent_s = time.perf_counter()
        async for event in self._generate(request, timeout=TIMEOUT_S):
            match event.WhichOneof("event"):
                case "token" if readout and not event.token.readout:
                    raise ServerDied("a token came without the requested readout")
                case "token" if not event.token.is_prefill:
                    times.append(time.perf_counter())
                    tokens.append(event.token.id)
                case "done":
                    done = event.done
        if done is None or len(tokens) != max_tokens:
            raise ServerDied(f"Generate gave {len(tokens)} tokens where {max_tokens} were requested")
        return GenerateRecord(sent_s, tuple(times), tuple(tokens), done, time.perf_counter())


@asynccontextmanager
async def connected(host: str, port: int, model: str) -> AsyncIterator[Node]:
    """A channel, closed when the block is left."""
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        yield Node(channel, model)
