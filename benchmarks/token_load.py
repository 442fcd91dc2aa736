"""Streams of token-id prompts against one OpenAI-compatible server, from several processes.

One process of Python reads about 20,000 tokens a second: the client must not be what is measured.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.load import Endpoint

_CLIENTS = 4
_FIRST_TOKEN = 300
"""Below lie the tokens that are signs."""
_SPAWN_S = 2.0
"""How long the processes of a load have to start before all send at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each with a prompt of its own."""

    streams: int
    prompt: int
    output: int
    vocabulary: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Course:
    """One stream: when it was sent, when its frames came, and how many tokens there were."""

    sent_s: float
    frame_s: tuple[float, ...]
    tokens: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load came to, in seconds and tokens a second."""

    tokens_per_s: float
    first_median_s: float
    first_worst_s: float
    gap_worst_s: float
    failed: int


def body(model: str, load: Load, chance: random.Random) -> bytes:
    prompt = [chance.randrange(_FIRST_TOKEN, load.vocabulary) for _ in range(load.prompt)]
    asked: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": load.output,
        "temperature": load.temperature,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.temperature:
        asked |= {"top_p": load.top_p, "seed": chance.randrange(2**31)}
    return json.dumps(asked).encode()


async def stream(endpoint: Endpoint, payload: bytes, at_s: float = 0.0) -> Course:
    """Send one request, at a time of the wall clock, and read it to its end."""
    await asyncio.sleep(max(at_s - time.time(), 0.0))
    sent_s, frames, tail = time.time(), [], b""
    try:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {endpoint.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        await writer.drain()
        while data := await reader.read(1 << 16):
            if b'"text"' in data:
                frames.append(time.time())
            tail = (tail + data)[-4096:]
        writer.close()
    except OSError as error:
        return Course(sent_s, tuple(frames), 0, str(error))
    counts = re.findall(rb'"completion_tokens":\s*(\d+)', tail)
    if not counts or not frames:
        return Course(sent_s, tuple(frames), 0, tail[-300:].decode(errors="replace"))
    return Course(sent_s, tuple(frames), int(counts[-1]))


def _client(endpoint: Endpoint, load: Load, streams: int, seed: int, at_s: float) -> list[Course]:
    async def run() -> list[Course]:
        chance = random.Random(seed)
        payloads = [body(endpoint.model, load, chance) for _ in range(streams)]
        return list(await asyncio.gather(*(stream(endpoint, payload, at_s) for payload in payloads)))

    return asyncio.run(run())


def run_load(endpoint: Endpoint, load: Load) -> Outcome:
    """Run it, all streams sent at one moment."""
    clients = min(_CLIENTS, load.streams)
    shares = [load.streams // clients + (number < load.streams % clients) for number in range(clients)]
    at_s = time.time() + _SPAWN_S + load.streams * load.prompt / 1e6
    with ProcessPoolExecutor(clients, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [
            pool.submit(_client, endpoint, load, share, random.getrandbits(32), at_s) for share in shares
        ]
        courses = [course for each in waiting for course in each.result()]
    return outcome(courses)


def outcome(courses: list[Course]) -> Outcome:
    """Sum up; raises ValueError with the first error where every stream failed."""
    good = [course for course in courses if course.error is None]
    if not good:
        raise ValueError(courses[0].error)
    lasted_s = max(course.frame_s[-1] for course in good) - min(course.sent_s for course in good)
    first = sorted(course.frame_s[0] - course.sent_s for course in good)
    gaps = [after - before for course in good for before, after in pairwise(course.frame_s)]
    tokens = sum(course.tokens for course in good)
    return Outcome(
        tokens / lasted_s, first[len(first) // 2], first[-1], max(gaps, default=0.0), len(courses) - len(good)
    )


@dataclass(frozen=True, slots=True)
class Stall:
    """A long prompt beside streams: its first token, and the longest silence of a stream until then."""

    first_s: float
    gap_worst_s: float


async def run_stall(endpoint: Endpoint, beside: Load, prompt: int, wait_s: float) -> Stall:
    """Let streams decode, then send the long prompt."""
    chance = random.Random(1)
    tasks = [
        asyncio.create_task(stream(endpoint, body(endpoint.model, beside, chance)))
        for _ in range(beside.streams)
    ]
    await asyncio.sleep(wait_s)
    long = await stream(endpoint, body(endpoint.model, Load(1, prompt, 4, beside.vocabulary), chance))
    courses = [course for course in await asyncio.gather(*tasks) if course.error is None]
    if long.error is not None or not courses:
        raise ValueError(long.error or "no stream went on beside the prompt")
    until_s = long.frame_s[0]
    gaps = [
        after - before
        for course in courses
        for before, after in pairwise(course.frame_s)
        if after >= long.sent_s and before <= until_s
    ]
    return Stall(until_s - long.sent_s, max(gaps, default=0.0))
