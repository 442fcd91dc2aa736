"""The workloads W1 to W7 as data, and their execution against a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import assert_never

from benchmarks.load import ChatRequest, Endpoint, Message, Record, chat
from benchmarks.measure import Summary, summarise
from benchmarks.prompts import words

TEMPLATE_TOKENS = 64
"""More than a chat template adds to one message; for deciding what fits, not for counting."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Independent requests, so many at once, perhaps behind one system prompt."""

    requests: int
    at_once: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0

    @property
    def longest_tokens(self) -> int:
        return self.shared_tokens + self.prompt_tokens + self.output_tokens + TEMPLATE_TOKENS


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations side by side, each turn sending the whole history with the server's own answers."""

    count: int
    turns: int
    turn_tokens: int
    output_tokens: int

    @property
    def longest_tokens(self) -> int:
        return self.turns * (self.turn_tokens + self.output_tokens + TEMPLATE_TOKENS)


@dataclass(frozen=True, slots=True)
class Intrusion:
    """Running streams, and one long prompt that arrives between them."""

    streams: int
    prompt_tokens: int
    output_tokens: int
    after_s: float
    long_prompt_tokens: int
    long_output_tokens: int

    @property
    def longest_tokens(self) -> int:
        return self.long_prompt_tokens + self.long_output_tokens + TEMPLATE_TOKENS


@dataclass(frozen=True, slots=True)
class Agent:
    """One conversation of two long turns: the second reads on from where the first ended."""

    turn_tokens: int
    output_tokens: int

    @property
    def longest_tokens(self) -> int:
        return 2 * (self.turn_tokens + self.output_tokens + TEMPLATE_TOKENS)


Shape = Burst | Conversations | Intrusion | Agent


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    shape: Shape


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "one stream, 64/128", Burst(3, 1, 64, 128)),
        Workload("W2", "32 requests, 16 at once, 64/128", Burst(32, 16, 64, 128)),
        Workload(
            "W3", "32 requests, 16 at once, 1,000 shared + 30/64", Burst(32, 16, 30, 64, shared_tokens=1000)
        ),
        Workload("W4", "8 conversations of 5 turns, 40/64 each", Conversations(8, 5, 40, 64)),
        Workload("W5", "8 streams of 400, then a 4,000-token prompt", Intrusion(8, 64, 400, 3.0, 4000, 32)),
        Workload("W6", "64 at once, 50/32", Burst(64, 64, 50, 32)),
        Workload("W7", "an agent: 3,900 tokens, then 3,900 more", Agent(3900, 16)),
    )
}


def shrunk(workload: Workload) -> Workload:
    """The same workload small enough to see that it runs; its numbers mean nothing."""
    match workload.shape:
        case Burst() as burst:
            shape: Shape = replace(
                burst,
                requests=max(burst.at_once, burst.requests // 8),
                output_tokens=8,
                shared_tokens=burst.shared_tokens // 8,
            )
        case Conversations() as conversations:
            shape = replace(conversations, count=2, turns=3, output_tokens=8)
        case Intrusion() as intrusion:
            shape = replace(intrusion, streams=2, output_tokens=60, after_s=0.3, long_prompt_tokens=400)
        case Agent() as agent:
            shape = replace(agent, turn_tokens=200, output_tokens=8)
        case _:
            assert_never(workload.shape)
    return replace(workload, shape=shape)


async def run(workload: Workload, endpoint: Endpoint, seed: int) -> Summary:
    """Run one workload; the same seed sends the same prompts, another seed shares none with it."""
    random = Random(f"{workload.name}/{seed}")
    match workload.shape:
        case Burst() as shape:
            return await _burst(shape, endpoint, random, seed)
        case Conversations() as shape:
            return await _conversations(shape, endpoint, random, seed)
        case Intrusion() as shape:
            return await _intrusion(shape, endpoint, random, seed)
        case Agent() as shape:
            return await _agent(shape, endpoint, random, seed)
        case _:
            assert_never(workload.shape)


async def _burst(shape: Burst, endpoint: Endpoint, random: Random, seed: int) -> Summary:
    shared = (Message("system", words(random, shape.shared_tokens)),) if shape.shared_tokens else ()
    # Made before the clock starts, so that making prompts does not count.
    waiting = iter(
        [
            ChatRequest((*shared, _user(random, shape.prompt_tokens)), shape.output_tokens, seed)
            for _ in range(shape.requests)
        ]
    )
    records: list[Record] = []
    async with asyncio.TaskGroup() as clients:
        for _ in range(shape.at_once):
            clients.create_task(_client(endpoint, waiting, records))
    return summarise(records, streams=shape.at_once)


async def _client(endpoint: Endpoint, waiting: Iterator[ChatRequest], records: list[Record]) -> None:
    for chat_request in waiting:
        records.append(await chat(endpoint, chat_request))


async def _conversations(shape: Conversations, endpoint: Endpoint, random: Random, seed: int) -> Summary:
    scripts = [[_user(random, shape.turn_tokens) for _ in range(shape.turns)] for _ in range(shape.count)]
    records: list[Record] = []
    async with asyncio.TaskGroup() as clients:
        for script in scripts:
            clients.create_task(_converse(endpoint, script, shape.output_tokens, seed, records))
    return summarise(records, streams=shape.count)


async def _converse(
    endpoint: Endpoint, script: list[Message], output_tokens: int, seed: int, records: list[Record]
) -> None:
    history: tuple[Message, ...] = ()
    for message in script:
        record = await chat(endpoint, ChatRequest((*history, message), output_tokens, seed))
        records.append(record)
        if record.error is not None:
            return
        history = (*history, message, Message("assistant", record.text))


async def _intrusion(shape: Intrusion, endpoint: Endpoint, random: Random, seed: int) -> Summary:
    chat_requests = [
        ChatRequest((_user(random, shape.prompt_tokens),), shape.output_tokens, seed)
        for _ in range(shape.streams)
    ]
    long_request = ChatRequest((_user(random, shape.long_prompt_tokens),), shape.long_output_tokens, seed)
    async with asyncio.TaskGroup() as clients:
        streams = [clients.create_task(chat(endpoint, chat_request)) for chat_request in chat_requests]
        await asyncio.sleep(shape.after_s)
        intruder = await chat(endpoint, long_request)
    return summarise([stream.result() for stream in streams], streams=shape.streams, intruder=intruder)


async def _agent(shape: Agent, endpoint: Endpoint, random: Random, seed: int) -> Summary:
    records: list[Record] = []
    script = [_user(random, shape.turn_tokens) for _ in range(2)]
    await _converse(endpoint, script, shape.output_tokens, seed, records)
    return summarise(records[:1], streams=1, intruder=records[-1])


def _user(random: Random, count: int) -> Message:
    return Message("user", words(random, count))
