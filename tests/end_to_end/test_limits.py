"""What is let in, in which order, and what those hear who are not; on the real model."""

import asyncio
import json
import re
import time

import pytest

from support.real_node import Answer, Node, answer, ask, eventually, running_node

pytestmark = pytest.mark.model

PARALLEL, QUEUE, CALLERS = 2, 6, 60
LENGTH = 100
"""Tokens of an answer: none ends before the last caller was heard."""


def admitted_now(node: Node) -> float:
    """What the worker itself counts; `in_flight` also counts those whose prompt is still being read."""
    page = node.get("/metrics").decode()
    found = re.findall(r"^ganglion_(?:slots_used|queue_depth)\{.*\} (\S+)$", page, re.MULTILINE)
    running, waiting = map(float, found)
    return running + waiting


async def test_as_many_as_fit_are_admitted_and_all_others_are_told_at_once_to_come_back(tmp_path) -> None:
    flags = ("--context", "512", "--parallel", str(PARALLEL))
    seen: list[float] = []
    with running_node(tmp_path, *flags, GANGLION_ENGINE__QUEUE_LIMIT=str(QUEUE)) as node:
        began_s = time.monotonic()
        calls = [
            asyncio.create_task(answer(node, stream=number % 2 == 0, max_tokens=LENGTH))
            for number in range(CALLERS)
        ]
        while not all(call.done() for call in calls):
            seen.append(await asyncio.to_thread(admitted_now, node))
            await asyncio.sleep(0.02)
        answers = await asyncio.gather(*calls)
        assert (await answer(node, max_tokens=3)).status == 200
    assert max(seen) == PARALLEL + QUEUE
    admitted = [each for each in answers if each.status == 200]
    refused = [each for each in answers if each.status == 503]
    assert (len(admitted), len(refused)) == (PARALLEL + QUEUE, CALLERS - PARALLEL - QUEUE)
    for each in admitted:
        if each.frames:
            assert each.is_whole
        else:
            assert json.loads(each.body)["usage"]["completion_tokens"] == LENGTH
    for each in refused:
        assert (each.error, each.headers["retry-after"]) == ("overloaded", "1")
        assert each.last_s - began_s < 2.0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_prompt_longer_than_the_context_is_refused_before_any_byte(
    node: Node, is_streamed: bool
) -> None:
    refused = await answer(node, "word " * 5000, stream=is_streamed)
    assert (refused.status, refused.error) == (400, "context_length_exceeded")
    assert refused.headers["content-type"] == "application/json"


async def test_a_more_urgent_request_overtakes_those_who_wait_longer(tmp_path) -> None:
    ended: list[str] = []

    async def call(node: Node, name: str, **fields: object) -> None:
        assert (await answer(node, name, stream=True, **fields)).is_whole
        ended.append(name)

    with running_node(tmp_path, "--context", "512", "--parallel", "1") as node:
        first = Answer()
        running = asyncio.create_task(first.receive(node.port, ask(stream=True, max_tokens=300)))
        await first.started.wait()
        calls = []
        for waiting, (name, priority) in enumerate([("patient", 3), ("urgent", 1), ("ordinary", 2)], start=1):
            calls.append(asyncio.create_task(call(node, name, priority=priority, max_tokens=10)))
            await eventually(lambda waiting=waiting: node.health()["in_flight"] == 1 + waiting)
        assert not running.done(), "the first answer outlasts the queueing"
        await asyncio.gather(*calls)
        assert (await running).is_whole
    assert ended == ["urgent", "ordinary", "patient"]
