"""Frames that are written in the call that brings their events: a full connection, silence, the end."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from ganglion.core.delivery import Room, Sink
from ganglion.core.events import Closed, Delta, Event, Finished, Opened, Started, Usage
from ganglion.core.request import Request, TextPrompt
from ganglion.server.answers import Answers
from ganglion.server.deadlines import Alarm
from ganglion.server.endpoints.http import write_answers
from ganglion.server.settings import ServerSettings
from ganglion.wire.chat.project import chat_projection
from ganglion.wire.chat.schema import ChatReplyContext
from ganglion.wire.frame import Comment, Frame

WORDS = [f" w{number}" for number in range(40)]
REQUEST = Request("r", "m", TextPrompt("hi"))


def word(text: str) -> Delta:
    return Delta(0, text)


class Pushing:
    """An engine that delivers from outside of any task, as a worker's connection does."""

    def __init__(self) -> None:
        self.sink: Sink[Event] | None = None
        self._ended = asyncio.Event()

    def models(self) -> tuple[()]:
        return ()

    async def generate_into(self, request: Request, sink: Sink[Event]) -> None:
        self.sink = sink
        await self._ended.wait()

    def say(self, *events: Event) -> Room:
        assert self.sink is not None
        if isinstance(events[-1], Finished):
            self._ended.set()
        return self.sink(events)


class Out:
    """A connection whose buffer fills up when it is told to."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.comments = 0
        self.now = 0
        self.room = asyncio.Event()
        self.room.set()
        self.is_over = False

    async def start(self) -> None:
        pass

    def write_now(self, frames: Sequence[Frame | Comment]) -> bool:
        if self.room.is_set():
            self.now += 1
            self._keep(frames)
        return self.room.is_set()

    async def write(self, frames: Sequence[Frame | Comment], *, is_last: bool = False) -> None:
        await self.room.wait()
        self._keep(frames)
        self.is_over = is_last

    def _keep(self, frames: Sequence[Frame | Comment]) -> None:
        assert not self.is_over, "nothing follows the last frames"
        for frame in frames:
            if isinstance(frame, Comment):
                self.comments += 1
            elif b'"content":" ' in frame.data:
                self.text.append(frame.data.split(b'"content":"')[1].split(b'"')[0].decode())


async def streamed(play: Callable[[Pushing, Out], object], *, keep_alive_s: float = 10.0) -> Out:
    engine, out = Pushing(), Out()
    reply = ChatReplyContext(id="c", created_s=0, model="m")
    async with Answers(engine, (REQUEST,)) as answers:  # type: ignore[arg-type]
        with closing(Alarm()) as alarm:
            settings = ServerSettings(keep_alive_s=keep_alive_s)
            writing = asyncio.create_task(
                write_answers(answers, chat_projection(reply), out, settings, alarm=alarm)
            )
            await asyncio.sleep(0.01)
            engine.say(Started(1), Opened(0, "text"), word(WORDS[0]))
            await asyncio.sleep(0.01)
            await play(engine, out)  # type: ignore[misc]
            engine.say(Closed(0), Finished("stop", Usage(1, len(WORDS))))
            await asyncio.wait_for(writing, 5)
    return out


async def test_every_token_is_written_in_the_call_that_brings_it() -> None:
    async def play(engine: Pushing, out: Out) -> None:
        for text in WORDS[1:]:
            assert engine.say(word(text)) is None
            assert out.text[-1] == text

    out = await streamed(play)
    assert out.text == WORDS
    assert out.is_over


async def test_a_full_connection_holds_back_whoever_makes_the_answer_and_loses_nothing() -> None:
    async def play(engine: Pushing, out: Out) -> None:
        out.room.clear()
        room = engine.say(word(WORDS[1]))
        assert room is not None
        waiting = asyncio.ensure_future(room)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert out.text == WORDS[:1]
        out.room.set()
        await asyncio.wait_for(waiting, 1)
        for text in WORDS[2:]:
            assert engine.say(word(text)) is None

    assert (await streamed(play)).text == WORDS


async def test_an_end_that_comes_while_the_connection_is_full_is_written_after_the_rest() -> None:
    async def play(engine: Pushing, out: Out) -> None:
        out.room.clear()
        assert engine.say(*map(word, WORDS[1:])) is not None
        asyncio.get_running_loop().call_later(0.05, out.room.set)

    out = await streamed(play)
    assert out.text == WORDS
    assert out.is_over


async def test_a_silent_stream_says_that_it_lives_and_a_busy_one_does_not() -> None:
    async def play(engine: Pushing, out: Out) -> None:
        for text in WORDS[1:]:
            engine.say(word(text))
            await asyncio.sleep(0.005)
        assert out.comments == 0
        await asyncio.sleep(0.7)
        assert 1 <= out.comments <= 3

    assert (await streamed(play, keep_alive_s=0.3)).text == WORDS


async def test_a_projection_that_fails_ends_the_stream_and_not_its_engine() -> None:
    async def play(engine: Pushing, out: Out) -> None:
        assert engine.say(None) is None  # type: ignore[arg-type]

    with pytest.raises(AssertionError):
        await streamed(play)
