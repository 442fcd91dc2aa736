"""The server's end of a worker's socket: frames in, frames out, and news of its death.

Law: every request that was submitted gets exactly one end: the worker's own, or the reason the worker died.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import assert_never, cast

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue
from ganglion.engines.ipc import (
    MAX_FRAME_BYTES,
    PREFIX,
    Abort,
    FromWorker,
    Load,
    Ready,
    Refused,
    Stepped,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
    Update,
    encode,
    from_worker,
)

IDLE = Load(running=0, waiting=0, kv_used=0, step_s=0.0, decode_s=0.0)


class Mailbox:
    """What came for one request and was not read yet; bounded by the tokens the request may generate."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._arrived = asyncio.Event()
        self._error: GanglionError | None = None

    def put(self, update: Update) -> None:
        """Deliver news."""
        self._updates.append(update)
        self._arrived.set()

    def fail(self, error: GanglionError) -> None:
        """Say that nothing more will come."""
        self._error = error
        self._arrived.set()

    async def take(self) -> list[Update]:
        """Wait for news and take all of it; raises when the worker died and all was read."""
        await self._arrived.wait()
        updates, self._updates = self._updates, []
        if not updates and self._error is not None:
            raise self._error
        if self._error is None:
            self._arrived.clear()
        return updates


class Connection(asyncio.Protocol):
    """One worker's life, from its first frame to its last."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._mailboxes: dict[int, Mailbox] = {}
        self._questions: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        self._next_id = 1
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.load = IDLE

    @property
    def in_flight(self) -> int:
        """How many requests were submitted and have not ended."""
        return len(self._mailboxes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        """Cut frames out of the stream."""
        self._buffer += data
        start, size = 0, len(self._buffer)
        while size - start >= PREFIX.size:
            length = PREFIX.unpack_from(self._buffer, start)[0]
            if length > MAX_FRAME_BYTES:
                self.abort()
                return
            end = start + PREFIX.size + length
            if end > size:
                break
            self._receive(from_worker.decode(memoryview(self._buffer)[start + PREFIX.size : end]))
            start = end
        if start:
            del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everyone who waits."""
        error = EngineFailed("The engine died under this request.", hint="It is being restarted; try again.")
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)
        if not self.ready.done():
            self.ready.set_exception(EngineFailed("The worker died while it was loading the model."))
        self._mailboxes.clear()
        self.load = IDLE
        self._on_lost()

    def send(self, frame: ToWorker) -> None:
        """Send a frame; a worker that is gone is noticed by `connection_lost`."""
        assert self._transport is not None
        self._transport.write(encode(frame))

    def send_raw(self, body: bytes) -> None:
        """Send a body that is no frame: the plan, first of all."""
        assert self._transport is not None
        self._transport.write(PREFIX.pack(len(body)) + body)

    def abort(self) -> None:
        """Cut the socket; the worker ends itself."""
        if self._transport is not None:
            self._transport.abort()

    def new_id(self) -> int:
        """A number that no other request or question of this worker has."""
        self._next_id += 1
        return self._next_id

    async def updates(self, submit: Submit) -> AsyncGenerator[Update, None]:
        """Run a sequence; closing this aborts it."""
        mailbox = self._mailboxes[submit.id] = Mailbox()
        is_ended = False
        self.send(submit)
        try:
            while not is_ended:
                for update in await mailbox.take():
                    is_ended = is_ended or update.end is not None
                    yield update
        finally:
            if self._mailboxes.pop(submit.id, None) is not None and not is_ended:
                self.send(Abort(submit.id))

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Ask the worker, which answers beside its running batch."""
        number = self.new_id()
        question: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self._questions[number] = question
        try:
            self.send(Tokenize(number, text, add_special, parse_special))
            return await question
        finally:
            del self._questions[number]

    def _receive(self, frame: FromWorker) -> None:
        match frame:
            case Stepped(updates=updates, load=load):
                self.load = load
                for update in updates:
                    mailbox = self._mailboxes.get(update.id)
                    if mailbox is not None:
                        mailbox.put(update)
            case Tokenized(id=number, tokens=tokens):
                self._answer(number, tuple(tokens))
            case Refused(id=0):
                self.ready.set_exception(error_of(frame))
            case Refused(id=number):
                self._answer(number, error_of(frame))
            case Ready():
                self.ready.set_result(frame)
            case _:
                assert_never(frame)

    def _answer(self, number: int, answer: tuple[int, ...] | GanglionError) -> None:
        question = self._questions.get(number)
        if question is None or question.done():
            return
        if isinstance(answer, GanglionError):
            question.set_exception(answer)
        else:
            question.set_result(answer)


def error_of(refused: Refused) -> GanglionError:
    """The typed error that a worker's refusal stands for."""
    pending: list[type[GanglionError]] = [GanglionError]
    while pending:
        kind = pending.pop()
        if kind.code == refused.code and kind.__init__ is GanglionError.__init__:
            return kind(refused.message, hint=refused.hint, extras=dict(refused.extras))
        pending.extend(kind.__subclasses__())
    return InvalidValue(refused.message) if refused.id else EngineFailed(refused.message, hint=refused.hint)
