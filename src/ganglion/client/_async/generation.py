"""The driver of flows in an event loop, and the iterator over a generation's events."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TypeVar, assert_never

from ganglion.client._async.protocols import AsyncReplyStream, AsyncTransport
from ganglion.client.concurrency import async_run_together
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
from ganglion.client.transport import CallOptions
from ganglion.client.values import Event, Result
from ganglion.core.errors import GanglionError, SessionBusy

T = TypeVar("T")


class AsyncFlowDriver:
    """Makes one flow's calls over a transport; at most one stream at a time."""

    def __init__(self, transport: AsyncTransport, call_options: CallOptions) -> None:
        self._transport = transport
        self._call_options = call_options
        self._incoming: AsyncReplyStream | None = None
        self.is_cancelled = False

    async def next_event(self, flow_run: FlowRun[T]) -> Event | None:
        """Continue until there is an event, or None at the end."""
        try:
            while flow_run.effect is not None:
                if isinstance(flow_run.effect, Emit):
                    event = flow_run.effect.event
                    flow_run.reply(None)
                    return event
                try:
                    message = await self._perform(flow_run.effect)
                except GanglionError as error:
                    if self.is_cancelled:
                        flow_run.abandon()
                        return None
                    flow_run.fail(error)
                else:
                    flow_run.reply(message)
            return None
        except BaseException:
            flow_run.abandon()
            raise
        finally:
            if flow_run.is_over:
                self.cancel_stream()

    def cancel_stream(self) -> None:
        """Cancel the stream, if one is open; a read that waits for it ends."""
        incoming = self._incoming
        if incoming is not None:
            incoming.cancel()

    async def _perform(self, effect: Effect) -> EffectReply:
        match effect:
            case UnaryCall(rpc=rpc, request=request):
                return await self._transport.call(rpc, request, self._call_options)
            case UploadCall(rpc=rpc, requests=requests):
                return await self._transport.upload(rpc, requests, self._call_options)
            case StreamCall(rpc=rpc, request=request):
                self.cancel_stream()
                self._incoming = self._transport.stream(rpc, request, self._call_options)
            case ReadMessage():
                assert self._incoming is not None
                return await self._incoming.read()
            case Sleep(seconds=seconds):
                await asyncio.sleep(seconds)
            case Gather(flows=flows):
                return await async_run_together(
                    [partial(finish, flow, self._transport, self._call_options) for flow in flows]
                )
            case Emit():
                pass
            case _:
                assert_never(effect)
        return None


async def finish(flow: Flow[T], transport: AsyncTransport, call_options: CallOptions) -> T:
    """Drive a flow to its answer; its events are dropped."""
    flow_run, driver = FlowRun(flow), AsyncFlowDriver(transport, call_options)
    while await driver.next_event(flow_run) is not None:
        pass
    return flow_run.answer


class AsyncGeneration(AsyncIterator[Event]):
    """The events of one `generate()` or `run()`, as they come.

    Closing it, dropping it, or cancelling its reader cancels the work on the node; what was read until then
    is in the session.

        async with session.generate(max_tokens=64) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    print(event.text, end="")
    """

    def __init__(self, flow: Flow[None], transport: AsyncTransport, call_options: CallOptions) -> None:
        self._driver = AsyncFlowDriver(transport, call_options)
        self._builder = ResultBuilder()
        self._is_reading = False
        self._run = FlowRun(flow)

    async def __anext__(self) -> Event:
        if self._is_reading:
            raise SessionBusy("Another task is reading this generation.")
        self._is_reading = True
        try:
            event = await self._driver.next_event(self._run)
        finally:
            self._is_reading = False
        if event is None:
            raise StopAsyncIteration
        self._builder.take(event)
        return event

    @property
    def is_reading(self) -> bool:
        """Whether a caller waits for its next event."""
        return self._is_reading

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids that were generated so far."""
        return self._builder.tokens

    async def result(self) -> Result:
        """Read to the end; the whole result."""
        async for _ in self:
            pass
        return self._builder.result()

    async def text(self) -> str:
        """Read to the end; the text, without the token that ended it."""
        result = await self.result()
        return result.text

    def close(self) -> None:
        """Cancel; may be called from another task, and after the end."""
        self._driver.is_cancelled = True
        self._driver.cancel_stream()
        if not self._is_reading:
            self._run.abandon()

    async def __aenter__(self) -> "AsyncGeneration":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Absent where the flow raised before there was anything to close.
        if hasattr(self, "_run"):
            self.close()
