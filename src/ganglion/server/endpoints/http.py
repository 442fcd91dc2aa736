"""HTTP as every wire uses it: reading a body, watching the client, and streaming frames to it.

Law: until the first byte any failure is an HTTP status; after it the wire's own error frame. The first byte
goes out with the first token or after a second of waiting, whichever is earlier.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, closing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.errors import BodyTooLarge, DeadlineExceeded, UnsupportedMediaType
from ganglion.core.events import Delta, Failed, Finished, Opened
from ganglion.server.answers import Answers
from ganglion.server.deadlines import Alarm
from ganglion.server.endpoints.live_frames import FrameSink, LiveFrames
from ganglion.server.gate import Gate
from ganglion.server.middleware.errors import ClientGone
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.scope import ABORT, WRITE_NOW, header, principal
from ganglion.server.settings import ServerSettings
from ganglion.wire.frame import SERVER_SENT_EVENTS, Comment, Frame, Framing, Projection


def stream_headers(framing: Framing = SERVER_SENT_EVENTS) -> list[tuple[bytes, bytes]]:
    """The headers of a body that is written as it comes."""
    return [
        (b"content-type", framing.content_type),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]


class ReaderStalled(Exception):
    """The client is connected and does not read."""


def json_response(body: bytes, status: int = 200) -> Response:
    """A whole JSON answer."""
    return Response(body, status, media_type="application/json")


async def read_json(
    scope: Scope, receive: Receive, settings: ServerSettings, *, is_any_type: bool = False
) -> bytes:
    """The whole body of a JSON request, within its limits.

    `is_any_type` is for a wire whose clients never say what they send, curl's form type included. A page of
    another origin can send that type unasked; it is the origin guard that turns it away, not the type.
    """
    media_type = (header(scope, b"content-type") or b"").split(b";")[0].strip().lower()
    is_json = is_any_type or media_type == b"application/json"
    if not is_json or header(scope, b"content-encoding") not in (None, b"identity"):
        raise UnsupportedMediaType(
            "The body must be JSON.", hint="Send it uncompressed as 'content-type: application/json'."
        )
    try:
        async with asyncio.timeout(settings.body_s):
            return await _read(scope, receive, settings.max_body_bytes)
    except TimeoutError:
        raise DeadlineExceeded("body", settings.body_s) from None


async def _read(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    announced = header(scope, b"content-length") or b""
    if announced.isdigit() and int(announced[:20]) > max_bytes:
        raise BodyTooLarge(max_bytes)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise BodyTooLarge(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


async def while_connected(scope: Scope, receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work unless the client leaves first; then the work is cancelled, and awaited."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        is_over = working.done() and not working.cancelled()
        if is_over and isinstance(working.exception(), ReaderStalled):
            abort_connection(scope)
            await leaving
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if working.cancelled():
        raise ClientGone
    working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def abort_connection(scope: Scope) -> None:
    """End the connection of a client that does not read."""
    # Closing politely would wait for the bytes that this client does not read.
    extension = scope.get("extensions", {}).get(ABORT)
    if extension is None:
        raise ReaderStalled
    extension["abort"]()


class _AnswerRecorder(Protocol):
    """Stores an answer: its first byte and its end wait for it."""

    async def wait_begun(self) -> None:
        """Return when the first byte may leave; raises why it may not."""

    async def record_end(self, frames: Sequence[Frame | Comment]) -> Sequence[Frame | Comment]:
        """The frames to end with, in place of these, once they may leave."""


async def stream_answers(
    answers: Answers,
    projection: Projection,
    scope: Scope,
    send: Send,
    settings: ServerSettings,
    *,
    framing: Framing = SERVER_SENT_EVENTS,
    recorder: _AnswerRecorder | None = None,
    ending: Sequence[Frame] = (),
) -> None:
    """Stream the answers as the projection frames them, from the first byte to the last.

    `ending` follows the projection's last frame: what belongs to the transport and not to the answer.
    """
    with closing(Alarm()) as alarm:
        out = _ResponseSink(scope, send, alarm, settings, framing)
        await write_answers(answers, projection, out, settings, alarm=alarm, recorder=recorder, ending=ending)


async def write_answers(
    answers: Answers,
    projection: Projection,
    out: FrameSink,
    settings: ServerSettings,
    *,
    alarm: Alarm,
    recorder: _AnswerRecorder | None = None,
    ending: Sequence[Frame] = (),
) -> None:
    """Write the answers as the projection frames them; raises what goes wrong before the first byte."""
    frames: Sequence[Frame | Comment]
    frames = await _until_first_byte(answers, projection, alarm.after(settings.first_byte_s))
    if recorder is not None:
        await recorder.wait_begun()
    await out.start()
    if not projection.is_done:
        await out.write(frames)
        frames = await LiveFrames(projection, out, alarm, keep_alive_s=settings.keep_alive_s).until_last(
            answers
        )
    if recorder is not None:
        # Whatever it takes to keep an answer, only its end waits for it.
        await out.write(frames[:-1])
        frames = await recorder.record_end(frames[-1:])
    await out.write([*frames, *ending, *answers.usage_comments()], is_last=True)


async def send_frames(
    parts: AsyncGenerator[Sequence[Frame], None] | Sequence[Frame | Comment],
    scope: Scope,
    send: Send,
    settings: ServerSettings,
    *,
    ending: Sequence[Frame] = (),
) -> None:
    """Stream frames that are there, or that come by themselves, and an ending."""
    with closing(Alarm()) as alarm:
        out = _ResponseSink(scope, send, alarm, settings, SERVER_SENT_EVENTS)
        await out.start()
        if isinstance(parts, Sequence):
            await out.write([*parts, *ending], is_last=True)
            return
        async with aclosing(parts):
            async for frames in parts:
                await out.write(frames)
        await out.write(ending, is_last=True)


async def _until_first_byte(answers: Answers, projection: Projection, alarm: Alarm) -> list[Frame | Comment]:
    frames: list[Frame | Comment] = []
    has_begun = False
    try:
        with alarm:
            while not has_begun:
                for choice, event in await answers.take():
                    if isinstance(event, Failed) and not has_begun:
                        raise event.error
                    has_begun = has_begun or isinstance(event, Opened | Delta | Finished)
                    frames += projection.feed(event, choice)
                    if projection.is_done:
                        return frames
    except TimeoutError:
        frames += projection.tick()
    return frames


def _never(_: bytes) -> bool:
    return False


def _nothing() -> None:
    """Where nothing is written now, nothing waits."""


class _ResponseSink:
    """The response as it is written, giving up on a client that does not read."""

    def __init__(
        self, scope: Scope, send: Send, alarm: Alarm, settings: ServerSettings, framing: Framing
    ) -> None:
        self._send = send
        extension = scope.get("extensions", {}).get(WRITE_NOW, {})
        self._write_now: Callable[[bytes], bool] = extension.get("write", _never)
        self._flush: Callable[[], None] = extension.get("flush", _nothing)
        self._alarm = alarm
        self._stalled_s = settings.stalled_reader_s
        self._framing = framing

    async def start(self) -> None:
        headers = stream_headers(self._framing)
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    def write_now(self, frames: Sequence[Frame | Comment]) -> bool:
        return self._write_now(self._body(frames))

    async def write(self, frames: Sequence[Frame | Comment], *, is_last: bool = False) -> None:
        body = self._body(frames)
        self._flush()
        try:
            with self._alarm.after(self._stalled_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except TimeoutError:
            raise ReaderStalled from None

    def _body(self, frames: Sequence[Frame | Comment]) -> bytes:
        return b"".join([self._framing.encode(frame) for frame in frames])


_AnswerBody = Callable[[bytes, Principal], Awaitable[bytes]]
"""From a request's body and principal to the body of the answer."""


class JsonEndpoint:
    """Reads a JSON body, answers it with another one, and stops when the client leaves or time is up."""

    def __init__(
        self, answer: _AnswerBody, settings: ServerSettings, gate: Gate, *, is_any_type: bool = False
    ) -> None:
        self._answer = answer
        self._is_any_type = is_any_type
        self._settings = settings
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=self._is_any_type)
        with self._gate.admit():
            await while_connected(scope, receive, self._respond(body, scope, receive, send))

    async def _respond(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        limit_s = self._settings.deadlines.total_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._answer(body, principal(scope))
        except TimeoutError:
            raise DeadlineExceeded("total", limit_s) from None
        await json_response(answer)(scope, receive, send)
