"""The bytes of images that running requests may hold, for all keys and for each."""

import asyncio

import pytest

from ganglion.core.errors import Overloaded
from ganglion.core.events import Failed, Finished
from ganglion.core.request import Attachment, ChatPrompt, Message, Request
from ganglion.server.images.image_engine import ImageEngine
from ganglion.server.images.image_memory import ImageMemory
from support.served import echo


def showing(size: int, tenant: str = "anna", said: str = "see") -> Request:
    message = Message("user", said, attachments=(Attachment(bytes(size), len(said)),))
    return Request("r", "echo", ChatPrompt((message,)), tenant=tenant)


def test_one_key_has_its_share_and_another_finds_room_beside_it() -> None:
    memory = ImageMemory(room=100, each=50)
    first, second = showing(40), showing(40)
    memory.hold(first, first)
    with pytest.raises(Overloaded):
        memory.hold(second, second)
    other, third = showing(50, "bert"), showing(20, "carl")
    memory.hold(other, other)
    with pytest.raises(Overloaded):
        memory.hold(third, third)
    for held in (first, other):
        memory.release(held)
    assert memory.used == 0
    memory.hold(second, second)


def test_choices_of_a_call_hold_their_prompt_once_and_until_the_last_ends() -> None:
    memory, shared = ImageMemory(room=100, each=50), showing(40)
    for _ in range(16):
        memory.hold(shared, shared)
    assert memory.used == 40
    for left in range(15, -1, -1):
        memory.release(shared)
        assert memory.used == (40 if left else 0)


def test_a_file_larger_than_any_share_is_held_where_nothing_else_is() -> None:
    memory, large = ImageMemory(room=100, each=50), showing(500)
    memory.hold(large, large)
    memory.release(large)
    assert memory.used == 0


async def test_an_answer_gives_its_room_back_however_it_ends() -> None:
    memory = ImageMemory(room=100, each=50)
    inner = echo(sees=True)
    await inner.open()
    engine = ImageEngine(inner, memory=memory)
    events = [event async for event in engine.generate(showing(40))]
    assert isinstance(events[-1], Finished)
    events = [event async for event in engine.generate(showing(40, said="!echo fail_at=0\nsee"))]
    assert isinstance(events[-1], Failed)
    endless = showing(40, said="!echo unbounded=1 delay=0.01\nsee")
    running = engine.generate(endless)
    await anext(running)
    refused = [event async for event in engine.generate(showing(40))]
    assert isinstance(refused[-1], Failed)
    assert refused[-1].error.code == "overloaded"
    await running.aclose()
    await asyncio.sleep(0)
    assert memory.used == 0
    await inner.close()
