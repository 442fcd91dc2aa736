"""The item that is being written: the events of each kind of block from its opening to its end.

Every kind: `output_item.added` (in progress, empty), its own deltas and done, `output_item.done` (whole).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ganglion.core.events import Token
from ganglion.wire.frame import Frame
from ganglion.wire.responses.compaction import seal_reasoning
from ganglion.wire.responses.items import ReasoningText, Status
from ganglion.wire.responses.response_object import (
    ResponseCustomToolCall,
    ResponseFunctionCall,
    ResponseLogprob,
    ResponseMessage,
    ResponseReasoning,
    ResponseTextPart,
    logprobs_of,
)
from ganglion.wire.responses.responses_tools import WireToolName
from ganglion.wire.responses.stream_events import (
    ITEM_ADDED,
    ITEM_DONE,
    PART_ADDED,
    PART_DONE,
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    ItemEvent,
    ItemEventName,
    OutputTextDelta,
    OutputTextDone,
    PartEvent,
    PartEventName,
    ReasoningDelta,
    ReasoningDone,
)
from ganglion.wire.seal import Seal

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ItemPosition:
    """The index of an item, and the numbers that its events take."""

    numbers: Iterator[int]
    item_id: str
    output_index: int


def frame(event: Struct, name: str) -> Frame:
    """An event as it is sent."""
    return Frame(_encode(event), name)


def _said(place: ItemPosition, kind: Callable[..., Struct], *values: object) -> Frame:
    """An event about an item, named by its own tag."""
    event = kind(next(place.numbers), place.item_id, place.output_index, *values)
    return frame(event, str(event.__struct_config__.tag))


def _item(place: ItemPosition, name: ItemEventName, item: Raw) -> Frame:
    return frame(ItemEvent(name, next(place.numbers), place.output_index, item), name)


def _part(place: ItemPosition, name: PartEventName, part: ResponseTextPart | ReasoningText) -> Frame:
    return frame(PartEvent(name, next(place.numbers), place.item_id, place.output_index, part), name)


@dataclass(slots=True)
class OpenMessage:
    """A message."""

    place: ItemPosition
    has_logprobs: bool
    texts: list[str] = field(default_factory=list)
    logprobs: list[ResponseLogprob] = field(default_factory=list)

    def open(self) -> list[Frame]:
        """The frames that announce it."""
        message = ResponseMessage(id=self.place.item_id, status="in_progress", content=())
        return [
            _item(self.place, ITEM_ADDED, Raw(_encode(message))),
            _part(self.place, PART_ADDED, ResponseTextPart(text="")),
        ]

    def more(self, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        """The frames of more text."""
        logprobs = logprobs_of(tokens) if self.has_logprobs and tokens else ()
        if not text and not logprobs:
            return []
        self.texts.append(text)
        self.logprobs.extend(logprobs)
        return [_said(self.place, OutputTextDelta, text, logprobs)]

    def item(self, status: Status) -> Raw:
        """The item with what it holds so far."""
        return Raw(_encode(ResponseMessage(id=self.place.item_id, status=status, content=(self._content(),))))

    def close(self, status: Status) -> tuple[list[Frame], Raw]:
        """The frames that end it, and the whole item."""
        place, part, item = self.place, self._content(), self.item(status)
        done = _said(place, OutputTextDone, part.text, part.logprobs)
        return [done, _part(place, PART_DONE, part), _item(place, ITEM_DONE, item)], item

    def _content(self) -> ResponseTextPart:
        return ResponseTextPart(text="".join(self.texts), logprobs=tuple(self.logprobs))


@dataclass(slots=True)
class OpenReasoning:
    """Reasoning, told in full."""

    place: ItemPosition
    seal: Seal | None
    texts: list[str] = field(default_factory=list)

    def open(self) -> list[Frame]:
        item = ResponseReasoning(id=self.place.item_id, status="in_progress", content=())
        return [
            _item(self.place, ITEM_ADDED, Raw(_encode(item))),
            _part(self.place, PART_ADDED, ReasoningText("")),
        ]

    def more(self, text: str, _: tuple[Token, ...]) -> list[Frame]:
        if not text:
            return []
        self.texts.append(text)
        return [_said(self.place, ReasoningDelta, text)]

    def item(self, status: Status) -> Raw:
        text = "".join(self.texts)
        blob: str | UnsetType = UNSET if self.seal is None else seal_reasoning(text, self.seal)
        part = ReasoningText(text)
        whole = ResponseReasoning(
            id=self.place.item_id, status=status, content=(part,), encrypted_content=blob
        )
        return Raw(_encode(whole))

    def close(self, status: Status) -> tuple[list[Frame], Raw]:
        place, text, item = self.place, "".join(self.texts), self.item(status)
        done = _said(place, ReasoningDone, text)
        return [done, _part(place, PART_DONE, ReasoningText(text)), _item(place, ITEM_DONE, item)], item


@dataclass(slots=True)
class OpenCall:
    """A call of a function, or of a custom tool with its text."""

    place: ItemPosition
    call_id: str
    called: WireToolName
    texts: list[str] = field(default_factory=list)

    def open(self) -> list[Frame]:
        return [_item(self.place, ITEM_ADDED, self.item("in_progress"))]

    def more(self, text: str, _: tuple[Token, ...]) -> list[Frame]:
        if not text:
            return []
        self.texts.append(text)
        return [_said(self.place, CustomInputDelta if self.called.is_custom else ArgumentsDelta, text)]

    def item(self, status: Status) -> Raw:
        called, text = self.called, "".join(self.texts)
        fields: dict[str, Any] = {
            "id": self.place.item_id,
            "status": status,
            "call_id": self.call_id,
            "name": called.name,
            "namespace": called.namespace or UNSET,
        }
        if called.is_custom:
            return Raw(_encode(ResponseCustomToolCall(**fields, input=text)))
        return Raw(_encode(ResponseFunctionCall(**fields, arguments=text)))

    def close(self, status: Status) -> tuple[list[Frame], Raw]:
        place, text, item = self.place, "".join(self.texts), self.item(status)
        if self.called.is_custom:
            done = _said(place, CustomInputDone, text)
        else:
            done = _said(place, ArgumentsDone, self.called.name, text)
        return [done, _item(place, ITEM_DONE, item)], item


OpenItem = OpenMessage | OpenReasoning | OpenCall
"""An item that is being written."""
