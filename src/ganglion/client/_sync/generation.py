"""Flows driven by blocking calls, and the iterator over a generation that is."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar, assert_never

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
from ganglion.client.transport import CallOptions, ReplyStream, Transport
from ganglion.client.values import Event, Result
from ganglion.core.errors import GanglionError, SessionBusy

T = TypeVar("T")


class FlowDriver:
    """One flow's calls over a line; at most one stream at a time."""

    def __init__(self, line: Transport, terms: CallOptions) -> None:
        self._line = line
        self._terms = terms
        self._incoming: ReplyStream | None = None
        self.is_left = False

    def next_event(self, course: FlowRun[T]) -> Event | None:
        """Go on until there is an event, or None at the end."""
        try:
            while course.effect is not None:
                if isinstance(course.effect, Emit):
                    event = course.effect.event
                    course.reply(None)
                    return event
                try:
                    message = self._perform(course.effect)
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
        """Cancel the stream, if one is open; whoever reads from it in another thread stops."""
        incoming = self._incoming
        if incoming is not None:
            incoming.cancel()

    def _perform(self, effect: Effect) -> EffectReply:
        match effect:
            case UnaryCall(rpc=rpc, request=request):
                return self._line.call(rpc, request, self._terms)
            case UploadCall(rpc=rpc, requests=requests):
                return self._line.upload(rpc, requests, self._terms)
            case StreamCall(rpc=rpc, request=request):
                self.hang_up()
                self._incoming = self._line.stream(rpc, request, self._terms)
            case ReadMessage():
                assert self._incoming is not None
                return self._incoming.read()
            case Sleep(seconds=seconds):
                time.sleep(seconds)
            case Gather(flows=flows):
                with ThreadPoolExecutor(max(len(flows), 1), thread_name_prefix="ganglion-branch") as threads:
                    running = [threads.submit(finish, flow, self._line, self._terms) for flow in flows]
                return tuple(each.result() for each in running)
            case Emit():
                pass
            case _:
                assert_never(effect)
        return None


def finish(flow: Flow[T], line: Transport, terms: CallOptions) -> T:
    """Drive a flow to its answer; nobody listens to its events."""
    course, errand = FlowRun(flow), FlowDriver(line, terms)
    while errand.next_event(course) is not None:
        pass
    return course.answer


class Generation(Iterator[Event]):
    """The events of one `generate()` or `run()`, as they come.

    Closing it, or dropping it, cancels the work on the node; what was told until then is in the session.

        with session.generate(max_tokens=64) as events:
            for event in events:
                if isinstance(event, TokenEvent):
                    print(event.text, end="")
    """

    def __init__(self, flow: Flow[None], line: Transport, terms: CallOptions) -> None:
        self._errand = FlowDriver(line, terms)
        self._gathered = ResultBuilder()
        self._is_reading = False
        self._course = FlowRun(flow)

    def __next__(self) -> Event:
        if self._is_reading:
            raise SessionBusy("Another thread reads this generation just now.")
        self._is_reading = True
        try:
            event = self._errand.next_event(self._course)
        finally:
            self._is_reading = False
        if event is None:
            raise StopIteration
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

    def result(self) -> Result:
        """Read to the end; the whole of it."""
        for _ in self:
            pass
        return self._gathered.result()

    def text(self) -> str:
        """Read to the end; the text, without the token that ended it."""
        return self.result().text

    def close(self) -> None:
        """Cancel; also from another thread, and after the end."""
        self._errand.is_left = True
        self._errand.hang_up()
        if not self._is_reading:
            self._course.leave()

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Absent where the flow raised before there was anything to close.
        if hasattr(self, "_course"):
            self.close()
