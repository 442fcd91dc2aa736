"""Asks about held-out pictures through llama.cpp's own server, and prints how many answers are right.

python -m tools.eyes.evaluate MODEL.gguf PROJECTOR.gguf [--pictures 200] [--wrong]
"""

import argparse
import base64
import json
import os
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import xllamacpp
from tools.eyes.describe import Question, held_out, is_right

CONTEXT_TOKENS = 2048
TIMEOUT_S = 120


def opened(model: Path, projector: Path, threads: int) -> tuple[xllamacpp.Server, str]:
    """llama.cpp's server on a port of its choice; it lives as long as this process."""
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.mmproj.path = str(model), str(projector)
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel, settings.warmup = CONTEXT_TOKENS, 1, False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    return server, server.listening_address


def answered(address: str, question: Question, *, is_picture_first: bool = True) -> str:
    """What the model says of the picture, which stands before or after the question."""
    picture = "data:image/png;base64," + base64.b64encode(question.png).decode()
    content = [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": question.text},
    ]
    body = {
        "messages": [{"role": "user", "content": content if is_picture_first else content[::-1]}],
        "max_tokens": 16,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said


def table(right: Counter[str], asked: Counter[str]) -> Iterator[str]:
    """A line for each kind of question."""
    for kind in sorted(asked):
        yield f"{kind:<12} {right[kind]:>4} of {asked[kind]:<4} {right[kind] / asked[kind]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("projector", type=Path)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--wrong", action="store_true", help="show what was answered wrongly")
    arguments = parser.parse_args()
    server, address = opened(arguments.model, arguments.projector, arguments.threads)
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for number, question in enumerate(held_out(arguments.seed, arguments.pictures)):
        said = answered(address, question, is_picture_first=number % 2 == 0)
        asked[question.kind] += 1
        right[question.kind] += is_right(said, question.answer)
        if arguments.wrong and not is_right(said, question.answer):
            print(f"{question.kind}: {question.text!r} wants {question.answer!r}, answered {said!r}")
    print(*table(right, asked), sep="\n", flush=True)
    del server


if __name__ == "__main__":
    main()
