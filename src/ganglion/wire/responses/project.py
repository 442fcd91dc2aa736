"""Projects the events of an answer into the frames of a Responses stream and the response that is stored.

Law: the response is durable before its last frame leaves. So `final` is set by the same `feed` that hands
out the last frame: a service that stores looks at it before it writes the frames of that call, and when the
store refuses, writes what `instead` gives in place of the last of them.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, assert_never

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ganglion.core.errors import GanglionError
from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Scored,
    Started,
)
from ganglion.core.fold import Answer
from ganglion.core.sampling import ResolvedSampling
from ganglion.wire.frame import Frame
from ganglion.wire.responses.item_codec import Ids
from ganglion.wire.responses.items import Status
from ganglion.wire.responses.open_items import (
    ItemPosition,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    frame,
)
from ganglion.wire.responses.response_object import (
    IncompleteDetails,
    ResponseObject,
    ResponsesReplyContext,
    error_of,
    usage_of,
    with_sampling,
)
from ganglion.wire.responses.responses_tools import WireToolName
from ganglion.wire.responses.stream_events import Lifecycle, LifecycleEvent
from ganglion.wire.seal import Seal

_encode = msgspec.json.Encoder().encode


class ResponsesProjection:
    """Feed it every event of the answer; `clock_s` tells the seconds since the epoch when it ends."""

    def __init__(
        self, reply: ResponsesReplyContext, *, ids: Ids, clock_s: Callable[[], int], seal: Seal | None = None
    ) -> None:
        self._reply = reply
        self._begun = reply.response
        self._ids = ids
        self._clock_s = clock_s
        self._seal = seal if reply.is_reasoning_sealed else None
        self._numbers = count()
        self._stage: Literal["unsaid", "queued", "running"] = "unsaid"
        self._block: OpenItem | None = None
        self._is_block_closed = False
        self._output: list[Raw] = []
        self.final: bytes | None = None
        """The response as it ended, to be stored before the frames that came with it are written."""
        self._last_number = 0

    @property
    def is_done(self) -> bool:
        """Whether the terminal frame has been handed out."""
        return self.final is not None

    def snapshot(self) -> bytes:
        """The response as it stands now, with its finished items."""
        if self.final is not None:
            return self.final
        status = "in_progress" if self._stage == "running" else self._begun.status
        return _encode(replace(self._begun, status=status, output=tuple(self._output)))

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The frames that this event adds; none once the stream is done."""
        if self.final is not None:
            return []
        if isinstance(event, Delta):
            assert self._block is not None
            return self._block.more(event.text, event.tokens)
        return self._turn(event)

    def _turn(self, event: Progress | Started | Scored | Opened | Closed | Finished | Failed) -> list[Frame]:
        match event:
            case Progress(stage="queued"):
                return self._queue()
            case Progress() | Started() | Scored():
                return self._run(event.sampling if isinstance(event, Started) else None)
            case Opened():
                return self._open(event)
            case Closed():
                # How an item ended is known only with what follows: another one, or the end of the answer.
                self._is_block_closed = True
                return []
            case Finished():
                return self._finish(event)
            case Failed(error=error):
                return self._fail(error)
            case _:
                assert_never(event)

    def tick(self) -> list[Frame]:
        """`response.in_progress` again: clients' idle timers count events, not comments."""
        if self.final is not None:
            return []
        return self._run() or [self._told("response.in_progress", self._running())]

    def instead(self, error: GanglionError) -> Frame:
        """The terminal frame that replaces the last one handed out, when `final` could not be stored."""
        assert self.final is not None, "there is nothing to replace before the end"
        failed = self._failed(error)
        self.final = _encode(failed)
        event = LifecycleEvent("response.failed", self._last_number, Raw(self.final))
        return frame(event, "response.failed")

    def cancel(self) -> list[Frame]:
        """End here, with the status `cancelled` and what was said so far.

        The wire names no event of its own for it, and no stream ends in silence: it is told as incomplete.
        """
        if self.final is not None:
            return []
        frames = self._run() + self._close("incomplete")
        response = replace(self._begun, status="cancelled", output=tuple(self._output))
        return [*frames, self._ended("response.incomplete", response)]

    def _queue(self) -> list[Frame]:
        if self._stage != "unsaid":
            return []
        self._stage = "queued"
        queued = replace(self._begun, status="queued")
        return [self._told("response.created", queued), self._told("response.queued", queued)]

    def _run(self, used: ResolvedSampling | None = None) -> list[Frame]:
        """It runs, by these values from now on."""
        if used is not None:
            self._begun = with_sampling(self._begun, used)
        if self._stage == "running":
            return []
        frames: list[Frame] = []
        if self._stage == "unsaid":
            is_background = self._begun.background
            frames += self._queue() if is_background else [self._told("response.created", self._running())]
        self._stage = "running"
        frames.append(self._told("response.in_progress", self._running()))
        return frames

    def _running(self) -> ResponseObject:
        return replace(self._begun, status="in_progress")

    def _open(self, opened: Opened) -> list[Frame]:
        frames = self._run() + self._close("completed")
        self._block = self._new_block(opened)
        self._is_block_closed = False
        return frames + self._block.open()

    def _new_block(self, opened: Opened) -> OpenItem:
        match opened.kind:
            case "text":
                return OpenMessage(self._place("msg"), self._reply.has_logprobs)
            case "reasoning":
                return OpenReasoning(self._place("rs"), self._seal)
            case "tool_call":
                name = opened.name or ""
                called = self._reply.called.get(name) or WireToolName(name)
                place = self._place("ctc" if called.is_custom else "fc")
                return OpenCall(place, opened.call_id or self._ids("call"), called)
            case _:
                assert_never(opened.kind)

    def _place(self, prefix: str) -> ItemPosition:
        return ItemPosition(self._numbers, self._ids(prefix), len(self._output))

    def _close(self, status: Status) -> list[Frame]:
        if self._block is None:
            return []
        frames, item = self._block.close(status)
        self._block = None
        self._output.append(item)
        return frames

    def _finish(self, finished: Finished) -> list[Frame]:
        is_cut = finished.reason == "length"
        frames = self._run() + self._close("incomplete" if is_cut else "completed")
        response = replace(
            self._begun,
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else self._clock_s(),
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            output=tuple(self._output),
            usage=usage_of(finished.usage),
        )
        return [*frames, self._ended("response.incomplete" if is_cut else "response.completed", response)]

    def _fail(self, error: GanglionError) -> list[Frame]:
        frames = self._run()
        if self._is_block_closed:
            frames += self._close("completed")
        elif self._block is not None:
            # Codex keeps every item that was done and asks again: one that was cut off is never called done.
            self._output.append(self._block.item("incomplete"))
            self._block = None
        return [*frames, self._ended("response.failed", self._failed(error))]

    def _failed(self, error: GanglionError) -> ResponseObject:
        output = tuple(self._output)
        return replace(self._begun, status="failed", error=error_of(error), output=output)

    def _ended(self, kind: Lifecycle, response: ResponseObject) -> Frame:
        self.final = _encode(response)
        self._last_number = next(self._numbers)
        return frame(LifecycleEvent(kind, self._last_number, Raw(self.final)), kind)

    def _told(self, kind: Lifecycle, response: ResponseObject) -> Frame:
        return frame(LifecycleEvent(kind, next(self._numbers), Raw(_encode(response))), kind)


def body(
    answer: Answer,
    reply: ResponsesReplyContext,
    *,
    ids: Ids,
    clock_s: Callable[[], int],
    seal: Seal | None = None,
) -> bytes:
    """The whole response, made by the projection that streams."""
    projection = ResponsesProjection(reply, ids=ids, clock_s=clock_s, seal=seal)
    for event in _events_of(answer):
        projection.feed(event)
    assert projection.final is not None
    return projection.final


def _events_of(answer: Answer) -> Iterator[Event]:
    yield Started(answer.finished.usage.prompt_tokens, sampling=answer.sampling)
    for index, block in enumerate(answer.blocks):
        yield Opened(index, block.kind, block.call_id, block.name)
        yield Delta(index, block.text, block.tokens)
        yield Closed(index)
    yield answer.finished
