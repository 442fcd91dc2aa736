"""The server's end of a worker's socket: frames in, frames out, and the end of the worker.

Law: every request that was submitted gets exactly one end: the worker's own, or the reason the worker died.
And everything that was sent to the worker is released by it exactly once, which is reported apart from its
end: an aborted sequence is in the worker until the worker says otherwise.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never, cast

from ganglion.core.delivery import Room
from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue, ShuttingDown, class_of, rebuild
from ganglion.core.model import WorkerLoad
from ganglion.engines.child_main import LENGTH_PREFIX
from ganglion.engines.supervision.ipc import (
    MAX_FRAME_BYTES,
    Abort,
    Detokenize,
    Detokenized,
    Embed,
    FromWorker,
    ImagePlaced,
    KvLoaded,
    KvSaved,
    LoadKv,
    MeasurePieces,
    PiecesMeasured,
    PlaceImage,
    SaveKv,
    SequenceGone,
    SequenceUpdate,
    Stepped,
    StopWorker,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
    Vectors,
    WorkerPing,
    WorkerPong,
    WorkerProgress,
    WorkerReady,
    WorkerRefusal,
    encode,
    from_worker,
)
from ganglion.engines.supervision.isolation import OnReleased, Outcome
from ganglion.engines.supervision.watchdog import WorkerVitals

UpdateSink = Callable[[SequenceUpdate], Room]
"""Takes the updates of one request, as every sink does."""
_RETRY_HINT: Final = "It is being restarted; try again."
IDLE: Final = WorkerLoad()


class WorkerDied(EngineFailed):
    """The worker died before it was ready, or could say why not."""


class _UpdateDelivery:
    """Hands one request's updates to its sink in the call that brings them.

    What comes while the sink is full is kept; bounded by the tokens the request may generate.
    """

    __slots__ = ("_changed", "_error", "_kept", "_room", "_sink", "has_ended")

    def __init__(self, sink: UpdateSink) -> None:
        self._sink = sink
        self._kept: deque[SequenceUpdate] = deque()
        self._room: Room = None
        self._error: Exception | None = None
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_ended = False
        """Whether the sink has the last update."""

    def put(self, update: SequenceUpdate) -> None:
        """Deliver an update."""
        if self._error is not None:
            return
        if self._room is not None or self._kept:
            self._kept.append(update)
            return
        try:
            self._room = self._sink(update)
        except Exception as error:  # noqa: BLE001 - its own run raises it: the frame holds others' updates
            self.fail(error)
            return
        self.has_ended = update.end is not None
        if self.has_ended or self._room is not None:
            self._wake()

    def fail(self, error: Exception) -> None:
        """End the delivery: nothing more comes."""
        self._error = error
        self._wake()

    async def wait_ended(self) -> None:
        """Wait until the last update is delivered; raises when the worker died and all before that is."""
        while True:
            await self._changed
            self._changed = asyncio.get_running_loop().create_future()
            while self._room is not None:
                await self._room
                self._room = None
                self._deliver_kept()
            if self.has_ended:
                return
            if self._error is not None:
                raise self._error.with_traceback(None)  # many share it: their frames would add up

    def _deliver_kept(self) -> None:
        while self._kept and self._room is None and not self.has_ended:
            update = self._kept.popleft()
            self._room = self._sink(update)
            self.has_ended = update.end is not None

    def _wake(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


def _ignore_outcome(_: Outcome) -> None:
    """For work whose release matters to nobody."""


_WorkerQuestion = Tokenize | Detokenize | MeasurePieces | Embed | SaveKv | LoadKv | PlaceImage
_WorkerAnswer = Tokenized | Detokenized | PiecesMeasured | Vectors | KvSaved | KvLoaded | ImagePlaced
_Answer = TypeVar("_Answer", bound=_WorkerAnswer)


@dataclass(frozen=True, slots=True)
class _PendingQuestion:
    """A question that the worker answers beside its batch, whoever still waits for it."""

    answer: asyncio.Future[_WorkerAnswer]
    on_released: OnReleased


class Connection(asyncio.Protocol):
    """One worker's life, from its first frame to its last."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deliveries: dict[int, _UpdateDelivery] = {}
        self._runs: dict[int, OnReleased] = {}
        """The sequences that the worker has, with or without somebody who reads them."""
        self._questions: dict[int, _PendingQuestion] = {}
        self._next_id = 1
        self._frames = self._steps = self._answers = 0
        self._outcome: Outcome = "crashed"
        self._reason: GanglionError = EngineFailed("The engine died under this request.", hint=_RETRY_HINT)
        self.ready: asyncio.Future[WorkerReady] = asyncio.get_running_loop().create_future()
        self.load = IDLE
        self.is_lost = False

    @property
    def vitals(self) -> WorkerVitals:
        """What the worker has sent so far, and what it owes."""
        return WorkerVitals(self._frames, self._steps, self._answers, bool(self._runs), bool(self._questions))

    @property
    def in_flight(self) -> int:
        """How many requests were submitted and have not ended."""
        return len(self._deliveries)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        """Cut frames out of the stream."""
        self._buffer += data
        start, size = 0, len(self._buffer)
        while size - start >= LENGTH_PREFIX.size:
            length = LENGTH_PREFIX.unpack_from(self._buffer, start)[0]
            if length > MAX_FRAME_BYTES:
                self.abort()
                return
            end = start + LENGTH_PREFIX.size + length
            if end > size:
                break
            self._receive(from_worker.decode(memoryview(self._buffer)[start + LENGTH_PREFIX.size : end]))
            start = end
        if start:
            del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail everyone who waits, and report that what was in the worker is released."""
        self.is_lost = True
        for delivery in self._deliveries.values():
            delivery.fail(self._reason)
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_exception(self._reason)
        if not self.ready.done():
            self.ready.set_exception(WorkerDied("The worker died while it was loading the model."))
        self._deliveries.clear()
        self.load = IDLE
        gone = [*self._runs.values(), *(question.on_released for question in self._questions.values())]
        self._runs.clear()
        self._questions.clear()
        self._on_lost()
        for on_released in gone:
            on_released(self._outcome)

    def send(self, frame: ToWorker) -> None:
        """Send a frame; a worker that is gone is noticed by `connection_lost`."""
        assert self._transport is not None
        self._transport.write(encode(frame))

    def send_raw(self, body: bytes) -> None:
        """Send a body that is no frame: the plan, first of all."""
        assert self._transport is not None
        self._transport.write(LENGTH_PREFIX.pack(len(body)) + body)

    def ping(self) -> None:
        """Ask the worker whether it still runs."""
        self.send(WorkerPing())

    def stop(self, keep_s: float = 0.0) -> None:
        """Ask the worker to end, and before that to keep its hot prefixes for at most so long.

        What is in it then is not to blame for its end.
        """
        self._outcome = "abandoned"
        self._reason = ShuttingDown("The model is being unloaded.")
        self.send(StopWorker(keep_s))

    def give_up(self, reason: str) -> None:
        """Cut the line to a worker of which nothing good is expected, and say why to all who wait."""
        self._reason = EngineFailed(f"The engine {reason} and was ended.", hint=_RETRY_HINT)
        self.abort()

    def abort(self) -> None:
        """Cut the socket; the worker ends itself."""
        if self._transport is not None:
            self._transport.abort()

    def new_id(self) -> int:
        """A number that no other request or question of this worker has."""
        self._next_id += 1
        return self._next_id

    async def run(self, submit: Submit, sink: UpdateSink, on_released: OnReleased = _ignore_outcome) -> None:
        """Run a sequence until it ends; cancelling this aborts it, and some time later it is gone."""
        self._check_alive(on_released)
        delivery = self._deliveries[submit.id] = _UpdateDelivery(sink)
        self._runs[submit.id] = on_released
        try:
            self.send(submit)
            await delivery.wait_ended()
        finally:
            if self._deliveries.pop(submit.id, None) is not None and not delivery.has_ended:
                self.send(Abort(submit.id))

    def interrupt(self, number: int, error: GanglionError) -> None:
        """End a sequence with an error of ours; some time later it is gone."""
        delivery = self._deliveries.pop(number, None)
        if delivery is not None:
            delivery.fail(error)
            self.send(Abort(number))

    async def ask(
        self, frame: _WorkerQuestion, expected: type[_Answer], on_released: OnReleased = _ignore_outcome
    ) -> _Answer:
        """Ask the worker what it answers beside its running batch; raises its refusal."""
        self._check_alive(on_released)
        question = _PendingQuestion(asyncio.get_running_loop().create_future(), on_released)
        self._questions[frame.id] = question
        self.send(frame)
        answer = await question.answer
        assert isinstance(answer, expected)
        return answer

    def _check_alive(self, on_released: OnReleased) -> None:
        if self.is_lost:
            on_released("abandoned")
            raise self._reason.with_traceback(None)

    def _receive(self, frame: FromWorker) -> None:
        self._frames += 1
        match frame:
            case Stepped(updates=updates, load=load):
                self._steps += 1
                self.load = load
                for update in updates:
                    self._deliver(update)
            case SequenceGone(id=number):
                self._steps += 1
                self._release(number, "abandoned")
            case Tokenized() | Detokenized() | PiecesMeasured() | Vectors():
                self._answer(frame.id, frame)
            case KvSaved() | KvLoaded() | ImagePlaced():
                self._answer(frame.id, frame)
            case WorkerProgress(is_of_step=is_of_step):
                self._answers += 1
                self._steps += is_of_step
            case WorkerPong():
                pass
            case WorkerRefusal(id=0):
                self.ready.set_exception(error_from_refusal(frame))
            case WorkerRefusal(id=number):
                self._answer(number, error_from_refusal(frame))
            case WorkerReady():
                self.ready.set_result(frame)
            case _:
                assert_never(frame)

    def _deliver(self, update: SequenceUpdate) -> None:
        delivery = self._deliveries.get(update.id)
        if delivery is not None:
            delivery.put(update)
        if update.end is not None:
            self._release(update.id, "completed" if update.end.error is None else "abandoned")

    def _release(self, number: int, outcome: Outcome) -> None:
        on_released = self._runs.pop(number, None)
        if on_released is not None:
            on_released(outcome)

    def _answer(self, number: int, answer: _WorkerAnswer | GanglionError) -> None:
        question = self._questions.pop(number, None)
        if question is None:
            return
        self._answers += 1
        if question.answer.done():
            pass  # whoever asked has left
        elif isinstance(answer, GanglionError):
            question.answer.set_exception(answer)
        else:
            question.answer.set_result(answer)
        question.on_released("completed")


def error_from_refusal(refused: WorkerRefusal) -> GanglionError:
    """The typed error that a worker's refusal stands for."""
    kind = class_of(refused.code) or (InvalidValue if refused.id else EngineFailed)
    return rebuild(kind, refused.message, hint=refused.hint, extras=dict(refused.extras))
