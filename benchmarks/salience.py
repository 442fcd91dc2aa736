"""A client of the session wire that notes when each token came, over nothing but grpc and the messages.

Like the HTTP one it shares the measured machine's cores with the server: no library stands in between.
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

SERVICE = "/salience.v1.Salience/"
TIMEOUT_S = 900.0
TTL_S = 3600.0


@dataclass(frozen=True, slots=True)
class Said:
    """One Generate: when it was sent, when each token came, what Done said."""

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
        """The same in the words of the HTTP client."""
        done = self.done
        counts = done.prompt_tokens, done.cached_tokens, done.completion_tokens
        return Record(self.sent_s, self.ended_s, self.token_s, "", *counts)


class Node:
    """The calls of one channel."""

    def __init__(self, channel: grpc.aio.Channel, model: str) -> None:
        self._model = model

        def unary(name: str, asked: type, answered: type) -> grpc.aio.UnaryUnaryMultiCallable:
            return channel.unary_unary(
                SERVICE + name,
                request_serializer=asked.SerializeToString,
                response_deserializer=answered.FromString,
            )

        self._open = unary("OpenSession", pb.OpenSessionRequest, pb.OpenSessionResponse)
        self._fork = unary("ForkSession", pb.ForkSessionRequest, pb.ForkSessionResponse)
        self._close = unary("CloseSession", pb.CloseSessionRequest, pb.CloseSessionResponse)
        self._tokenize = unary("Tokenize", pb.TokenizeRequest, pb.TokenizeResponse)
        self._generate = channel.unary_stream(
            SERVICE + "Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateEvent.FromString,
        )

    async def open(self) -> str:
        """A fresh session's id."""
        asked = pb.OpenSessionRequest(model=self._model, ttl_s=TTL_S)
        return str((await self._open(asked, timeout=TIMEOUT_S)).session_id)

    async def fork(self, session: str) -> str:
        """Another session with the same tokens."""
        asked = pb.ForkSessionRequest(session_id=session, ttl_s=TTL_S)
        return str((await self._fork(asked, timeout=TIMEOUT_S)).session_id)

    async def close(self, session: str) -> None:
        """Forget a session."""
        await self._close(pb.CloseSessionRequest(session_id=session), timeout=TIMEOUT_S)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """A text's tokens, control tokens that are written out included."""
        asked = pb.TokenizeRequest(model=self._model, text=text, parse_special=True)
        return tuple((await self._tokenize(asked, timeout=TIMEOUT_S)).tokens)

    async def generate(
        self,
        session: str,
        append: Sequence[int],
        offset: int,
        max_tokens: int,
        *,
        readout: Sequence[tuple[int, int]] = (),
    ) -> Said:
        """Append and generate exactly so many tokens, greedily."""
        asked = pb.GenerateRequest(
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
        async for event in self._generate(asked, timeout=TIMEOUT_S):
            match event.WhichOneof("event"):
                case "token" if readout and not event.token.readout:
                    raise ServerDied("a token came without the readout that was asked for")
                case "token" if not event.token.is_prefill:
                    times.append(time.perf_counter())
                    tokens.append(event.token.id)
                case "done":
                    done = event.done
        if done is None or len(tokens) != max_tokens:
            raise ServerDied(f"Generate gave {len(tokens)} tokens where {max_tokens} were asked for")
        return Said(sent_s, tuple(times), tuple(tokens), done, time.perf_counter())


@asynccontextmanager
async def connected(host: str, port: int, model: str) -> AsyncIterator[Node]:
    """A channel, closed when the block is left."""
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        yield Node(channel, model)
