"""What a client sees when the worker dies, clients leave, or the template is hostile; on the real model."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.faults import InjectedFault
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import load_model
from ganglion.engines.llama.tokens import WORKER
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.watchdog import WorkerLimits
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model
from support.real_node import MODEL, Answer, Node, answer, ask, eventually, running_node
from support.served import serving

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


async def test_after_a_death_another_tenant_waits_for_the_load_and_for_no_suspect(tmp_path: Path) -> None:
    with running_node(tmp_path, "--context", "2048") as node:
        requests = [ask(f"Story {number}, please.", stream=True, max_tokens=1500) for number in range(16)]
        answers = [Answer() for _ in requests]
        streams = [
            asyncio.create_task(each.receive(node.port, request))
            for each, request in zip(answers, requests, strict=True)
        ]
        await asyncio.gather(*(each.started.wait() for each in answers))
        node.worker().send_signal(signal.SIGKILL)
        await asyncio.gather(*streams)
        again = [asyncio.create_task(Answer().receive(node.port, request)) for request in requests]
        await eventually(lambda: node.health()["queued"] == 15, 20.0)  # one of them runs apart
        began_s = time.monotonic()
        assert (await answer(node, "Another tenant.", stream=True, max_tokens=1)).is_whole
        # The sixteen are a minute or more together.
        assert time.monotonic() - began_s < 5.0
        assert node.health()["queued"] == 15
        for task in again:
            task.cancel()
        await asyncio.gather(*again, return_exceptions=True)
        await eventually(lambda: node.health()["in_flight"] == node.health()["queued"] == 0)


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
        neighbour = asyncio.create_task(answer(node, "A story.", stream=True, max_tokens=60))
        whole, streamed = await answer(node, "bomb"), await answer(node, "bomb", stream=True)
        assert (whole.status, whole.error) == (400, "invalid_value")
        assert streamed.error == "invalid_value"  # its stream may have opened before the time was up
        assert b"[DONE]" not in streamed.body
        assert (await neighbour).is_whole
        assert (await answer(node, "Hello", stream=True, max_tokens=3)).is_whole
        assert node.health()["status"] == "loaded"


CRASH, HANG, NAN = " earthquake", " paralysis", " nonsense"
LIMITS = WorkerLimits(hang_s=1.0, ping_s=0.1, silence_s=2.0, healthy_s=0.0)


@dataclass(frozen=True)
class FaultyNode:
    """A server around the real worker, in which some words do harm."""

    engine: LlamaEngine
    port: int

    @property
    def restarts(self) -> int:
        return self.engine.models()[0].restarts

    async def answer(self, text: str, **fields: object) -> Answer:
        return await Answer().receive(self.port, ask(text, **({"max_tokens": 8} | fields)))

    async def beside(self, text: str) -> tuple[Answer, Answer]:
        """An answer, and that of a neighbour which was there before."""
        neighbour = Answer()
        request = ask("A long story, please.", stream=True, max_tokens=60)
        running = asyncio.create_task(neighbour.receive(self.port, request))
        await asyncio.wait_for(neighbour.started.wait(), 20.0)
        return await self.answer(text), await running


@asynccontextmanager
async def faulty_node() -> AsyncIterator[FaultyNode]:
    found = embedded_model()
    model = load_model(open_library(), found.path, gpu_layers=0)
    crash, hang, nan = [
        tuple(model.tokenize(word, add_special=False, parse_special=False)) for word in (CRASH, HANG, NAN)
    ]
    model.free()
    engine = LlamaEngine(
        read_facts(found.path),
        EngineSettings(MODEL, context=512, limits=LIMITS),
        faults=(
            InjectedFault("crash", crash, at_token=3),
            InjectedFault("hang", hang, at_token=2),
            InjectedFault("nan", nan),
        ),
    )
    async with serving(engine) as node:
        await eventually(lambda: engine.models()[0].status == "loaded", 60.0)
        yield FaultyNode(engine, node.port)


async def test_requests_that_crash_hang_or_compute_nan_cost_what_they_must() -> None:
    async with faulty_node() as node:
        victim, neighbour = await node.beside(f"An{NAN}")
        assert (victim.status, victim.error) == (500, "engine_failed")
        assert neighbour.is_whole
        assert node.restarts == 0

        for deaths, word in ((0, CRASH), (2, HANG)):
            poison, neighbour = await node.beside(f"An{word}")
            assert (poison.status, poison.error, neighbour.error) == (500, "engine_failed", "engine_failed")
            assert (await node.answer(f"An{word}")).error == "engine_failed"
            poison, neighbour = await node.beside(f"An{word}")
            assert (poison.status, poison.error) == (422, "request_quarantined")
            assert neighbour.is_whole, "it was a suspect, and is innocent"
            assert node.restarts == deaths + 2

        for text in ("one", "two", "three"):
            assert (await node.answer(f"{text}{NAN}")).error == "engine_failed"
        assert (await node.answer("Hello")).status == 200
        assert node.restarts == 5, "NaN in three different prompts in a row is the device's"


async def test_a_worker_that_is_stopped_is_replaced_and_its_streams_are_told() -> None:
    async with faulty_node() as node:
        running = Answer()
        request = ask("A long story.", stream=True, max_tokens=400)
        stream = asyncio.create_task(running.receive(node.port, request))
        await asyncio.wait_for(running.started.wait(), 20.0)
        [worker] = [each for each in psutil.Process().children() if WORKER in each.cmdline()]
        worker.send_signal(signal.SIGSTOP)
        assert (await asyncio.wait_for(stream, 10.0)).error == "engine_failed"
        assert (await node.answer("Hello")).status == 200
        assert not worker.is_running()
