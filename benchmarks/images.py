"""Pictures beside llama.cpp's own server on the same files: first tokens, rates, next turns, worst gaps.

    python -m benchmarks.images --mmproj FILE
    python -m benchmarks.images --mmproj FILE --rounds 1 --output-tokens 4 --clients 2

Law: one server runs at a time, and each picture is sent to a server once, but for those that are asked about
twice. A ratio is the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import IO

import numpy as np
import uvloop
from PIL import Image

from benchmarks.load import ChatRequest, Endpoint, Message, Record, chat
from benchmarks.measure import worst_gap
from benchmarks.servers import Launch, ours, peer, running

MODEL = "smollm2-135m-instruct"
TARGETS = {"ttft_s": 1.0, "requests_per_s": 1.2, "again_share": 0.3, "worst_gap_s": 0.6}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one server did in one round."""

    ttft_s: float
    requests_per_s: float
    again_share: float
    """Time to first token of the second turn with the same picture, as a part of the first's."""
    worst_gap_s: float
    """In running streams, while a picture is read."""


def main() -> None:
    options = _options()
    found: dict[str, list[Seen]] = {"ganglion": [], "peer": []}
    for number in range(options.rounds):
        launches = [
            ours(MODEL, options.threads, extra=f"--mmproj {options.mmproj}"),
            peer(MODEL, options.threads, is_unified=True, mmproj=options.mmproj),
        ]
        for launch in launches if number % 2 == 0 else reversed(launches):
            with (
                tempfile.TemporaryFile() as log,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                found[launch.server].append(runner.run(_measure(launch, options, log, 1000 * number)))
    for server, runs in found.items():
        print(server, json.dumps([asdict(run) for run in runs]))
    pairs = list(zip(found["ganglion"], found["peer"], strict=True))
    print(f"ttft      {median(our.ttft_s / their.ttft_s for our, their in pairs):.2f}  target 1.00 at most")
    rates = median(our.requests_per_s / their.requests_per_s for our, their in pairs)
    print(f"rate      {rates:.2f}  target {TARGETS['requests_per_s']} at least")
    again, gap_s = median(our.again_share for our, _ in pairs), max(our.worst_gap_s for our, _ in pairs)
    print(f"again     {again:.2f}  target {TARGETS['again_share']} at most")
    print(f"worst gap {gap_s:.2f} s  target {TARGETS['worst_gap_s']} s at most")


async def _measure(launch: Launch, options: argparse.Namespace, log: IO[bytes], seed: int) -> Seen:
    async with running(launch, log) as server:
        endpoint, count = server.endpoint, options.output_tokens
        firsts = [await _asked(endpoint, picture(seed + each), 1) for each in range(options.samples)]
        image = picture(seed + 100)
        once = await _asked(endpoint, image, count)
        again = await chat(
            endpoint,
            ChatRequest(
                (_question(image), Message("assistant", once.text), Message("user", "And what else?")), count
            ),
        )
        began_s = time.perf_counter()
        together = await asyncio.gather(
            *(_client(endpoint, seed + 200 + 10 * client, options) for client in range(options.clients))
        )
        elapsed_s = time.perf_counter() - began_s
        streams = [
            asyncio.create_task(
                chat(endpoint, ChatRequest((Message("user", f"Count from {each}."),), 8 * count))
            )
            for each in range(options.clients)
        ]
        await asyncio.sleep(options.settle_s)
        intruder = await _asked(endpoint, picture(seed + 900, 1024), 1)
        records = await asyncio.gather(*streams)
    for record in (*firsts, once, again, intruder, *records, *(each for runs in together for each in runs)):
        if record.error is not None:
            raise SystemExit(f"{launch.server}: {record.error}")
    return Seen(
        median(map(_ttft, firsts)),
        sum(map(len, together)) / elapsed_s,
        _ttft(again) / _ttft(once),
        worst_gap(records, since_s=intruder.sent_s) or 0.0,
    )


async def _client(endpoint: Endpoint, seed: int, options: argparse.Namespace) -> list[Record]:
    """One picture after another, none of them seen before."""
    return [
        await _asked(endpoint, picture(seed + each), options.output_tokens) for each in range(options.calls)
    ]


async def _asked(endpoint: Endpoint, image: bytes, count: int) -> Record:
    return await chat(endpoint, ChatRequest((_question(image),), count))


def _question(image: bytes) -> Message:
    return Message("user", "What is in this picture?", image)


def _ttft(record: Record) -> float:
    return record.delta_s[0] - record.sent_s


def picture(seed: int, side: int = 256) -> bytes:
    """A PNG file of noise: nothing of it can be known before."""
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=__doc__)
    parser.add_argument("--mmproj", required=True, help="the projector of the embedded model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--calls", type=int, default=3, help="pictures that each client asks about")
    parser.add_argument("--samples", type=int, default=5, help="first tokens that are timed alone")
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument(
        "--settle-s", type=float, default=1.0, help="how long streams run before a picture comes"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
