"""The server's end of a worker's socket, fed with bytes and without a worker."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import EngineFailed, InsufficientMemory, InvalidValue, LoadFailed, ShuttingDown
from ganglion.core.model import WorkerLoad
from ganglion.core.request import Stop
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.supervision.connection import IDLE, Connection, error_from_refusal
from ganglion.engines.supervision.ipc import (
    LENGTH_PREFIX,
    MAX_FRAME_BYTES,
    Abort,
    PieceRecord,
    SequenceEnd,
    SequenceGone,
    SequenceUpdate,
    Stepped,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
    WorkerPong,
    WorkerReady,
    WorkerRefusal,
    encode,
    to_worker,
)
from ganglion.engines.supervision.isolation import OnReleased, Outcome
from ganglion.engines.supervision.watchdog import WorkerVitals

BUSY = WorkerLoad(running=2, waiting=1, kv_used=30, step_s=1.0, native_s=0.9)


class Line:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def frames(self) -> list[ToWorker]:
        """What a worker would have read."""
        frames, rest = [], self.written
        while rest:
            (length,) = LENGTH_PREFIX.unpack_from(rest)
            frames.append(to_worker.decode(rest[LENGTH_PREFIX.size : LENGTH_PREFIX.size + length]))
            rest = rest[LENGTH_PREFIX.size + length :]
        return frames


def connection() -> tuple[Connection, Line, list[str]]:
    line, news = Line(), []
    subject = Connection(lambda: news.append("lost"))
    subject.connection_made(line)
    return subject, line, news


def submit(number: int) -> Submit:
    return Submit(
        id=number,
        tokens=[1, 2],
        max_tokens=8,
        sampling=ResolvedSampling(temperature=0.0),
        stop=Stop(),
        top_logprobs=None,
        priority=0,
        salt="",
    )


def end(error: str | None = None) -> SequenceEnd:
    return SequenceEnd("length", 2, None, 0.0, 0.0, 0.0, error)


def stepped(*updates: SequenceUpdate, load: WorkerLoad = BUSY) -> bytes:
    return encode(Stepped(list(updates), load))


STREAM = b"".join(
    [
        encode(WorkerReady(100, 0.5)),
        stepped(SequenceUpdate(7, started=(2, 0))),
        stepped(
            SequenceUpdate(7, pieces=[PieceRecord("Hello ünd " * 20, False, [])]),
            SequenceUpdate(99, started=(1, 0)),
        ),
        encode(Tokenized(5, [1, 2, 3])),
        stepped(SequenceUpdate(7, end=end())),
    ]
)


def nobody(_: Outcome) -> None:
    pass


async def collected(
    subject: Connection, number: int, on_released: OnReleased = nobody
) -> list[SequenceUpdate]:
    updates: list[SequenceUpdate] = []
    await subject.run(submit(number), updates.append, on_released)
    return updates


@given(st.sets(st.integers(0, len(STREAM))))
def test_frames_are_the_same_wherever_the_stream_is_cut(cuts):
    async def scenario() -> None:
        subject, _, _ = connection()
        reading = asyncio.create_task(collected(subject, 7))
        await asyncio.sleep(0)
        edges = [0, *sorted(cuts), len(STREAM)]
        for start, stop in pairwise(edges):
            subject.data_received(STREAM[start:stop])
        first, second, last = await reading
        assert subject.ready.result() == WorkerReady(100, 0.5)
        assert first.started == (2, 0)
        assert second.pieces[0].text == "Hello ünd " * 20
        assert last.end == end()
        assert subject.load == BUSY
        assert subject.in_flight == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**32 - 1])
async def test_a_frame_larger_than_any_could_be_cuts_the_line_before_it_is_read(length: int) -> None:
    subject, line, _ = connection()
    subject.data_received(LENGTH_PREFIX.pack(length) + b"x")
    assert line.is_aborted
    subject.connection_lost(None)
    with pytest.raises(EngineFailed):
        await subject.ready


async def test_a_lost_worker_ends_every_request_and_question_with_its_reason() -> None:
    subject, _, news = connection()
    subject.data_received(encode(WorkerReady(100, 0.5)))
    requests = [asyncio.create_task(collected(subject, number)) for number in (11, 12, 13)]
    question = asyncio.create_task(subject.ask(Tokenize(subject.new_id(), "a", True, False), Tokenized))
    await asyncio.sleep(0)
    subject.data_received(stepped(SequenceUpdate(12, end=end())))
    subject.connection_lost(ConnectionResetError())
    answers = await asyncio.gather(*requests, question, return_exceptions=True)
    assert [isinstance(each, EngineFailed) for each in answers] == [True, False, True, True]
    assert (subject.in_flight, subject.load, news) == (0, IDLE, ["lost"])


async def test_what_came_before_the_worker_died_is_still_read() -> None:
    subject, _, _ = connection()
    subject.data_received(encode(WorkerReady(100, 0.5)))
    updates: list[SequenceUpdate] = []
    running = asyncio.create_task(subject.run(submit(7), updates.append))
    await asyncio.sleep(0)
    subject.data_received(stepped(SequenceUpdate(7, started=(2, 0))))
    subject.connection_lost(None)
    with pytest.raises(EngineFailed):
        await running
    assert [update.started for update in updates] == [(2, 0)]


async def test_a_full_sink_gets_the_rest_in_order_once_it_has_room_and_no_neighbour_waits_for_it() -> None:
    subject, _, _ = connection()
    full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    taken: list[SequenceUpdate] = []

    def sink(update: SequenceUpdate) -> asyncio.Future[None] | None:
        taken.append(update)
        return full if len(taken) == 1 else None

    running = asyncio.create_task(subject.run(submit(7), sink))
    neighbour = asyncio.create_task(collected(subject, 8))
    await asyncio.sleep(0)
    for cached in range(4):
        subject.data_received(stepped(SequenceUpdate(7, started=(2, cached)), SequenceUpdate(8)))
    subject.data_received(stepped(SequenceUpdate(7, end=end()), SequenceUpdate(8, end=end())))
    assert len(await neighbour) == 5
    await asyncio.sleep(0)
    assert len(taken) == 1
    assert not running.done()
    full.set_result(None)
    await running
    assert [update.started for update in taken] == [(2, 0), (2, 1), (2, 2), (2, 3), None]


async def test_a_sink_that_raises_ends_its_own_run_and_no_other() -> None:
    subject, line, _ = connection()
    running = asyncio.create_task(subject.run(submit(7), lambda update: 1 / 0))  # type: ignore[arg-type,return-value]
    neighbour = asyncio.create_task(collected(subject, 8))
    await asyncio.sleep(0)
    subject.data_received(stepped(SequenceUpdate(7), SequenceUpdate(8)))
    subject.data_received(stepped(SequenceUpdate(7), SequenceUpdate(8, end=end())))
    assert len(await neighbour) == 2
    with pytest.raises(ZeroDivisionError):
        await running
    assert [frame for frame in line.frames() if isinstance(frame, Abort)] == [Abort(7)]


async def test_closing_a_request_aborts_it_and_an_ended_one_is_not_aborted() -> None:
    subject, line, _ = connection()
    subject.data_received(encode(WorkerReady(100, 0.5)))
    running = asyncio.create_task(collected(subject, 7))
    await asyncio.sleep(0)
    subject.data_received(stepped(SequenceUpdate(7, end=end())))
    await running
    left = asyncio.create_task(collected(subject, 8))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert [frame for frame in line.frames() if isinstance(frame, Abort)] == [Abort(8)]
    subject.data_received(stepped(SequenceUpdate(8, started=(1, 0))))  # it was under way; nobody misses it
    assert subject.in_flight == 0


async def test_what_was_sent_is_gone_exactly_once_and_not_before_the_worker_says_so() -> None:
    subject, _, _ = connection()
    told: list[tuple[str, str]] = []

    def run(name: str, number: int) -> asyncio.Task[list[SequenceUpdate]]:
        return asyncio.create_task(collected(subject, number, lambda outcome: told.append((name, outcome))))

    whole, failed, left, lost = [
        run(name, 11 + at) for at, name in enumerate(("whole", "nan", "left", "lost"))
    ]
    question = asyncio.create_task(
        subject.ask(
            Tokenize(subject.new_id(), "a", True, False),
            Tokenized,
            lambda outcome: told.append(("question", outcome)),
        )
    )
    await asyncio.sleep(0)
    left.cancel()
    question.cancel()
    await asyncio.gather(left, question, return_exceptions=True)
    assert told == [], "nobody waits for them, and the worker still has them"
    subject.data_received(stepped(SequenceUpdate(11, end=end()), SequenceUpdate(12, end=end(error="NaN"))))
    subject.data_received(encode(SequenceGone(13)) + encode(SequenceGone(13)) + encode(SequenceGone(99)))
    assert told == [("whole", "completed"), ("nan", "abandoned"), ("left", "abandoned")]
    subject.connection_lost(None)
    await asyncio.gather(whole, failed, lost, return_exceptions=True)
    assert told[3:] == [("lost", "crashed"), ("question", "crashed")]


async def test_only_news_of_work_is_counted_as_work() -> None:
    subject, _, _ = connection()
    running = asyncio.create_task(collected(subject, 7))
    await asyncio.sleep(0)
    assert subject.vitals == WorkerVitals(owes_step=True)
    subject.data_received(encode(WorkerPong()) + encode(WorkerPong()))
    assert subject.vitals == WorkerVitals(frames=2, owes_step=True)
    subject.data_received(stepped(SequenceUpdate(7, end=end())))
    assert subject.vitals == WorkerVitals(frames=3, steps=1)
    await running


@pytest.mark.parametrize(
    ("ending", "error", "outcome"),
    [
        (lambda subject: subject.stop(), ShuttingDown, "abandoned"),
        (lambda subject: subject.give_up("made no step"), EngineFailed, "crashed"),
    ],
)
async def test_a_worker_that_is_ended_leaves_the_reason_behind(ending, error, outcome) -> None:
    subject, _, _ = connection()
    told: list[str] = []
    running = asyncio.create_task(collected(subject, 7, told.append))
    await asyncio.sleep(0)
    ending(subject)
    subject.connection_lost(None)
    with pytest.raises(error):
        await running
    with pytest.raises(error):
        await collected(subject, 8, told.append)
    assert told == [outcome, "abandoned"]


async def test_questions_are_answered_by_number_in_any_order() -> None:
    subject, line, _ = connection()
    texts = ["a", "b", "c"]
    asked = [
        asyncio.create_task(subject.ask(Tokenize(subject.new_id(), text, False, True), Tokenized))
        for text in texts
    ]
    await asyncio.sleep(0)
    numbers = {frame.text: frame.id for frame in line.frames() if isinstance(frame, Tokenize)}
    subject.data_received(encode(Tokenized(numbers["c"], [3])))
    subject.data_received(encode(WorkerRefusal(numbers["a"], "engine_failed", "no", None, {})))
    subject.data_received(encode(Tokenized(numbers["b"], [2])))
    subject.data_received(encode(Tokenized(12345, [9])))
    refused, *answered = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refused, EngineFailed)
    assert answered == [Tokenized(numbers["b"], [2]), Tokenized(numbers["c"], [3])]


def test_a_refusal_becomes_the_error_that_its_code_names() -> None:
    refused = error_from_refusal(WorkerRefusal(0, "load_failed", "broken", "fetch it again", {"a": 1}))
    assert type(refused) is LoadFailed
    assert (refused.message, refused.hint, refused.extras) == ("broken", "fetch it again", {"a": 1})
    assert type(error_from_refusal(WorkerRefusal(0, "no_such_code", "?", None, {}))) is EngineFailed
    assert type(error_from_refusal(WorkerRefusal(4, "no_such_code", "?", None, {}))) is InvalidValue
    memory = error_from_refusal(WorkerRefusal(0, "insufficient_memory", "?", None, {"free_mb": 7}))
    assert isinstance(memory, InsufficientMemory)
    assert (memory.free_mb, memory.required_mb) == (7, 0)
