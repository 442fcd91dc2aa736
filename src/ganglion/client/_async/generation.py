"""Flows driven in an event loop, and the iterator over a generation that is."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, TypeVar, assert_never

from ganglion.client.flow import (
    Effect,
    EffectReply,
    Emit,
    Flow,
    Gather,
    ReadMessage,
    Sleep,
    StreamCall,
    UnaryCall,
    UploadCall,
)
from ganglion.client.flow_run import FlowRun, ResultBuilder
from ganglion.client.transport import AsyncReplyStream, AsyncTransport, CallOptions
from ganglion.client.values import Event, Result
from ganglion.core.errors import GanglionError, SessionBusy

T = TypeVar("T")


class AsyncFlowDriver:
    """One flow's calls over a line; at most one stream at a time."""

    def __init__(self, line: AsyncTransport, terms: CallOptions) -> None:
        self._line = line
        self._terms = terms
        self._incoming: AsyncReplyStream | None = None
        self.is_left = False

    async def next_event(self, course: FlowRun[T]) -> Event | None:
        """Go on until there is an event, or None at the end."""
        try:
            while course.effect is not None:
                if isinstance(course.effect, Emit):
                    event = course.effect.event
                    course.reply(None)
                    return event
                try:
                    message = await self._perform(course.effect)
                except GanglionError as error:
                    if self.is_left:
                        course.leave()
                        return None
                    course.fail(error)
                else:
                    course.reply(message)
            return None
        except BaseException:
            course.leave()
            raise
        finally:
            if course.is_over:
                self.hang_up()

    def hang_up(self) -> None:
        """Cancel the stream, if one is open; whoever reads from it stops."""
        incoming = self._incoming
        if incoming is not None:
            incoming.cancel()

    async def _perform(self, effect: Effect) -> EffectReply:
        match effect:
            case UnaryCall(rpc=rpc, request=request):
                return await self._line.call(rpc, request, self._terms)
            case UploadCall(rpc=rpc, requests=requests):
                return await self._line.upload(rpc, requests, self._terms)
            case StreamCall(rpc=rpc, request=request):
                self.hang_up()
                self._incoming = self._line.stream(rpc, request, self._terms)
            case ReadMessage():
                assert self._incoming is not None
                return await self._incoming.read()
            case Sleep(seconds=seconds):
                await asyncio.sleep(seconds)
            case Gather(flows=flows):
                return await _gathered([finish(flow, self._line, self._terms) for flow in flows])
            case Emit():
                pass
            case _:
                assert_never(effect)
        return None


async def _gathered(calls: "list[Coroutine[Any, Any, T]]") -> tuple[T, ...]:
    """What each comes to; where one raises or nobody waits any more, none goes on."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finish(flow: Flow[T], line: AsyncTransport, terms: CallOptions) -> T:
    """Drive a flow to its answer; nobody listens to its events."""
    course, errand = FlowRun(flow), AsyncFlowDriver(line, terms)
    while await errand.next_event(course) is not None:
        pass
    return course.answer


class AsyncGeneration(AsyncIterator[Event]):
    """The events of one `generate()` or `run()`, as they come.

    Closing it, dropping it, or cancelling whoever reads it cancels the work on the node; what was told until
    then is in the session.
    """

    def __init__(self, flow: Flow[None], line: AsyncTransport, terms: CallOptions) -> None:
        self._errand = AsyncFlowDriver(line, terms)
        self._gathered = ResultBuilder()
        self._is_reading = False
        self._course = FlowRun(flow)

    async def __anext__(self) -> Event:
        if self._is_reading:
            raise SessionBusy("Another task reads this generation just now.")
        self._is_reading = True
        try:
            event = await self._errand.next_event(self._course)
        finally:
            self._is_reading = False
        if event is None:
            raise StopAsyncIteration
        self._gathered.take(event)
        return event

    @property
    def is_reading(self) -> bool:
        """Whether somebody waits for its next event."""
        return self._is_reading

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids that were generated so far."""
        return self._gathered.tokens

    async def result(self) -> Result:
        """Read to the end; the whole of it."""
        async for _ in self:
            pass
        return self._gathered.result()

    async def text(self) -> str:
        """Read to the end; the text, without the token that ended it."""
        return (await self.result()).text

    def close(self) -> None:
        """Cancel; also from another task, and after the end."""
        self._errand.is_left = True
        self._errand.hang_up()
        if not self._is_reading:
            self._course.leave()

    async def __aenter__(self) -> "AsyncGeneration":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Absent where the flow raised before there was anything to close.
        if hasattr(self, "_course"):
            self.close()
