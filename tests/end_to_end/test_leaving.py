"""SIGTERM on a node that works: what runs is finished, what comes is refused, nothing stays behind."""

import asyncio
import json
import signal
import time
import urllib.error

import psutil
import pytest

from support.real_node import Answer, Node, answer, ask, eventually, running_node

pytestmark = pytest.mark.model


@pytest.fixture
def leaving(tmp_path):
    with running_node(tmp_path, "--context", "1024") as node:
        yield node


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() for each in processes)


def is_draining(node: Node) -> bool:
    try:
        node.get("/health/ready")
    except urllib.error.HTTPError as error:
        with error:
            return json.loads(error.read())["status"] == "draining"
    return False


async def test_sigterm_finishes_what_runs_refuses_what_comes_and_leaves_no_process(leaving: Node) -> None:
    family = leaving.family()
    assert len(family) >= 2, "a worker and a renderer"
    answers = [Answer() for _ in range(3)]
    request = ask(stream=True, max_tokens=200)
    streams = [asyncio.create_task(each.receive(leaving.port, request)) for each in answers]
    await asyncio.gather(*(each.started.wait() for each in answers))
    leaving.process.send_signal(signal.SIGTERM)
    asked_s = time.monotonic()
    await eventually(lambda: is_draining(leaving), 2.0)
    late = await answer(leaving, max_tokens=3)
    assert (late.status, late.error, late.headers["retry-after"]) == (503, "shutting_down", "15")
    assert not all(stream.done() for stream in streams), "it drained while it was asked"
    for each in await asyncio.gather(*streams):
        assert each.is_whole
    assert await asyncio.to_thread(leaving.process.wait, 10) == 0
    assert time.monotonic() - asked_s < 35.0
    assert are_gone(family)


async def test_a_second_sigterm_stops_at_once_and_says_so_to_whom_it_cuts(leaving: Node) -> None:
    family = leaving.family()
    cut = Answer()
    stream = asyncio.create_task(cut.receive(leaving.port, ask(stream=True, max_tokens=900)))
    await cut.started.wait()
    leaving.process.send_signal(signal.SIGTERM)
    await eventually(lambda: is_draining(leaving), 2.0)
    leaving.process.send_signal(signal.SIGTERM)
    asked_s = time.monotonic()
    assert await asyncio.to_thread(leaving.process.wait, 10) == 0
    assert time.monotonic() - asked_s < 3.0
    assert (await stream).error in ("shutting_down", "engine_failed")
    assert are_gone(family)


async def test_a_killed_node_takes_its_processes_with_it(leaving: Node) -> None:
    family = leaving.family()
    leaving.process.kill()
    await eventually(lambda: are_gone(family), 5.0)
