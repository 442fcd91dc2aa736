"""The schema of each event of a stream; an event's type is also its name on the SSE `event:` line."""

from typing import Final, Literal

from msgspec import Raw, Struct

from ganglion.wire.frame import Frame
from ganglion.wire.responses.items import ReasoningText
from ganglion.wire.responses.response_object import ResponseLogprob, ResponseTextPart

Lifecycle = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


ItemEventName = Literal["response.output_item.added", "response.output_item.done"]
PartEventName = Literal["response.content_part.added", "response.content_part.done"]
ITEM_ADDED: Final = "response.output_item.added"
ITEM_DONE: Final = "response.output_item.done"
PART_ADDED: Final = "response.content_part.added"
PART_DONE: Final = "response.content_part.done"


ENDING: Final = (Frame(b"[DONE]"),)
"""What follows the last event of a stream over server-sent events: Open Responses asks for it."""


class LifecycleEvent(Struct, frozen=True):
    """One of those that hold the whole response."""

    type: Lifecycle
    sequence_number: int
    response: Raw


class ItemEvent(Struct, frozen=True):
    type: ItemEventName
    sequence_number: int
    output_index: int
    item: Raw


class PartEvent(Struct, frozen=True):
    type: PartEventName
    sequence_number: int
    item_id: str
    output_index: int
    part: ResponseTextPart | ReasoningText
    content_index: int = 0


class OutputTextDelta(Struct, frozen=True, tag_field="type", tag="response.output_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    logprobs: tuple[ResponseLogprob, ...] = ()
    content_index: int = 0


class OutputTextDone(Struct, frozen=True, tag_field="type", tag="response.output_text.done"):
    sequence_number: int
    item_id: str
    output_index: int
    text: str
    logprobs: tuple[ResponseLogprob, ...] = ()
    content_index: int = 0


class ReasoningDelta(Struct, frozen=True, tag_field="type", tag="response.reasoning_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    content_index: int = 0


class ReasoningDone(Struct, frozen=True, tag_field="type", tag="response.reasoning_text.done"):
    sequence_number: int
    item_id: str
    output_index: int
    text: str
    content_index: int = 0


class ArgumentsDelta(Struct, frozen=True, tag_field="type", tag="response.function_call_arguments.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Struct, frozen=True, tag_field="type", tag="response.function_call_arguments.done"):
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str


class CustomInputDelta(Struct, frozen=True, tag_field="type", tag="response.custom_tool_call_input.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class CustomInputDone(Struct, frozen=True, tag_field="type", tag="response.custom_tool_call_input.done"):
    sequence_number: int
    item_id: str
    output_index: int
    input: str
