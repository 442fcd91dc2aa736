"""What a client sees when the worker dies, clients leave, or the template is hostile; on the real model."""

import asyncio
import random
import signal
import time

import pytest
from node import Answer, Node, answer, ask, eventually, running_node

pytestmark = pytest.mark.model

BOMB = (
    "{% if messages[0].content == 'bomb' %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}{{ messages[0].content }}"
)


async def test_a_killed_worker_ends_every_stream_with_an_error_frame_and_the_next_request_works(
    node: Node,
) -> None:
    worker = node.worker()
    answers = [Answer() for _ in range(4)]
    request = ask(stream=True, max_tokens=1500)
    streams = [asyncio.create_task(each.receive(node.port, request)) for each in answers]
    await asyncio.gather(*(each.started.wait() for each in answers))
    worker.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    for each in await asyncio.gather(*streams):
        assert each.error == "engine_failed"
        assert b"[DONE]" not in each.body
        assert each.last_s - killed_s < 2.0
    assert (await answer(node, stream=True, max_tokens=3)).is_whole
    assert node.worker().pid != worker.pid
    assert not worker.is_running()
    assert node.gauge("ganglion_worker_restarts_total") >= 1


async def leave(port: int, chance: random.Random) -> None:
    """Connect, get somewhere, and leave without a word."""
    is_streamed = chance.random() < 0.6
    text = "word " * chance.choice([3, 40, 400])
    request = ask(text, stream=is_streamed, max_tokens=200, n=chance.choice([1, 1, 2]))
    phase = chance.randrange(4)
    if phase == 0:
        request = request[: chance.randrange(len(request))]  # in the middle of the request
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    if phase > 1:  # in the queue, in prefill, in decode
        await asyncio.sleep(chance.random() * 0.4)
    writer.transport.abort()


async def test_a_thousand_disconnects_in_all_phases_leave_nothing_behind(node: Node) -> None:
    chance = random.Random(20)
    assert (await answer(node, stream=True, max_tokens=3)).is_whole
    names = ("ganglion_asyncio_tasks", "ganglion_open_fds", "ganglion_child_processes")
    before = {name: node.gauge(name) for name in names}
    for _ in range(20):
        await asyncio.gather(*(leave(node.port, chance) for _ in range(50)))

    def is_quiet() -> bool:
        return (
            node.health()["in_flight"] == node.health()["queued"] == 0
            and node.gauge("ganglion_slots_used") == 0
            and all(node.gauge(name) <= value for name, value in before.items())
        )

    await eventually(is_quiet, 20.0)
    assert node.gauge("ganglion_requests_in_flight") == 0
    assert (await answer(node, stream=True, max_tokens=3)).is_whole


async def test_a_template_that_never_ends_costs_its_own_request_an_error(tmp_path) -> None:
    template = tmp_path / "bomb.jinja"
    template.write_text(BOMB)
    with running_node(tmp_path, "--context", "512", "--chat-template", str(template)) as node:
        neighbour = asyncio.create_task(answer(node, "A story.", stream=True, max_tokens=100))
        whole, streamed = await answer(node, "bomb"), await answer(node, "bomb", stream=True)
        assert (whole.status, whole.error) == (400, "invalid_value")
        assert streamed.error == "invalid_value"  # its stream may have opened before the time was up
        assert b"[DONE]" not in streamed.body
        assert (await neighbour).is_whole
        assert (await answer(node, "Hello", stream=True, max_tokens=3)).is_whole
        assert node.health()["status"] == "loaded"
