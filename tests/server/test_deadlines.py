"""Four deadlines, each with its own name, and the engine's work given back."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ganglion.core.engine import ModelState
from ganglion.core.errors import DeadlineExceeded
from ganglion.core.events import Closed, Delta, Event, Failed, Finished, Opened, Progress, Started, Usage
from ganglion.core.request import Request, TextPrompt
from ganglion.server.deadlines import with_deadlines
from ganglion.server.settings import AnswerDeadlines

REQUEST = Request("r", "tiny", TextPrompt("x"))
DONE = Finished("stop", Usage(1, 1))


class Scripted:
    """Plays events, sleeping where a number stands."""

    def __init__(self, *script: Event | float) -> None:
        self.script = script
        self.is_closed = False

    def models(self) -> tuple[ModelState, ...]:
        return ()

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        try:
            for step in self.script:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
        finally:
            self.is_closed = True


QUICK = AnswerDeadlines(queue_s=0.1, first_token_s=0.1, idle_s=0.1, total_s=0.25)


@pytest.mark.parametrize(
    ("name", "after_s", "script"),
    [
        ("queue", 0.1, (Progress("queued", 0, 1), 0.06, Progress("queued", 0, 1), 5.0)),
        ("first_token", 0.16, (0.06, Started(1), 0.05, Progress("prefilled", 1, 2), 5.0)),
        ("idle", 0.18, (Started(1), 0.05, Opened(0, "text"), 0.03, Delta(0, "a"), 5.0)),
        ("total", 0.25, (Started(1), Opened(0, "text"), *(0.02, Delta(0, "a")) * 100)),
    ],
)
async def test_each_deadline_ends_the_stream_under_its_name(name, after_s, script) -> None:
    inner = Scripted(*script)
    began_s = asyncio.get_running_loop().time()
    events = [event async for event in with_deadlines(inner.generate(REQUEST), QUICK)]
    took_s = asyncio.get_running_loop().time() - began_s
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, DeadlineExceeded)
    assert events[-1].error.extras == {"deadline": name}
    assert after_s - 0.02 < took_s < after_s + 0.2
    assert inner.is_closed


async def test_a_stream_in_time_passes_unchanged() -> None:
    script = (Started(1), Opened(0, "text"), Delta(0, "a"), Closed(0), DONE)
    assert [event async for event in with_deadlines(Scripted(*script).generate(REQUEST), QUICK)] == list(
        script
    )


async def test_a_slow_reader_does_not_run_into_the_idle_deadline() -> None:
    script = (Started(1), Opened(0, "text"), Delta(0, "a"), Closed(0), DONE)
    events = []
    async for event in with_deadlines(Scripted(*script).generate(REQUEST), AnswerDeadlines(idle_s=0.02)):
        await asyncio.sleep(0.04)
        events.append(event)
    assert events == list(script)


async def test_a_deadline_is_a_504_before_the_first_byte(serving) -> None:
    async with serving(deadlines=AnswerDeadlines(first_token_s=0.1)) as served:
        response = await served.post("!echo first_token_delay=5\none", stream=True)
        assert response.status_code == 504
        assert response.json()["error"]["deadline"] == "first_token"
        await served.until_idle(0.5)
