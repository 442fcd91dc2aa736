"""The cost of the Responses wire alone: parsing a request like Codex's, and projecting an answer.

`python -m benchmarks.parsing` prints the best and the median of many runs; a busy machine shows in the last.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from statistics import median

from ganglion.core.events import Closed, Delta, Event, Finished, Opened, Started, Usage
from ganglion.wire.frame import sse
from ganglion.wire.responses import ResponsesParseContext, ResponsesProjection, parse

REQUEST_BYTES = 40_000
DELTAS = 2000
RUNS = 50


def codex_request(size_bytes: int = REQUEST_BYTES) -> bytes:
    """A turn in the middle of a session: long instructions, many tools, calls and their outputs."""
    tools = [
        {
            "type": "function",
            "name": f"tool_{number}",
            "description": "Does one thing, and says what it did. " * 4,
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": "What to do it with."}
                    for name in ("command", "workdir", "justification", "timeout_ms")
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        }
        for number in range(14)
    ]
    namespace = {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": tools[:4]}
    items: list[object] = [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Fix the tests. " * 20}],
        }
    ]
    request: dict[str, object] = {
        "model": "tiny",
        "instructions": "You are a coding agent. " * 300,
        "input": items,
        "tools": [*tools, {"type": "web_search", "external_web_access": False}, namespace],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
    }
    for turn in itertools.count():
        body = json.dumps(request).encode()
        if len(body) >= size_bytes:
            return body
        call_id = f"call_{turn}"
        call = {
            "type": "function_call",
            "call_id": call_id,
            "name": "tool_1",
            "arguments": '{"command":"ls"}',
        }
        output = {"type": "function_call_output", "call_id": call_id, "output": "src tests docs\n" * 20}
        thought = {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "I look around. " * 10}],
        }
        items += [thought, call, output]
    raise AssertionError


def answer_events() -> list[Event]:
    """A long answer, one token a delta."""
    deltas = [Delta(0, " word") for _ in range(DELTAS)]
    return [Started(100), Opened(0, "text"), *deltas, Closed(0), Finished("stop", Usage(100, DELTAS))]


def timed(work: Callable[[], object]) -> list[float]:
    """Seconds of each of many runs."""
    taken = []
    for _ in range(RUNS):
        begun_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun_s)
    return taken


def main() -> None:
    numbers = itertools.count()

    def ids(prefix: str) -> str:
        return f"{prefix}_{next(numbers)}"

    body = codex_request()
    context = ResponsesParseContext("resp_1", 0, ids)
    reply = parse(body, context).reply
    events = answer_events()

    def project() -> int:
        projection = ResponsesProjection(reply, ids=ids, clock_s=lambda: 0)
        return sum(len(sse(frame)) for event in events for frame in projection.feed(event))

    parsing, projecting = timed(lambda: parse(body, context)), timed(project)
    scale_us = 1e6 / len(events)
    print(f"parse {len(body)} bytes: best {min(parsing) * 1e3:.2f} ms, median {median(parsing) * 1e3:.2f} ms")
    print(
        f"projection and SSE: best {min(projecting) * scale_us:.2f} µs an event, "
        f"median {median(projecting) * scale_us:.2f} µs"
    )


if __name__ == "__main__":
    main()
