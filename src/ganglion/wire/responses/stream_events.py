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


class _ItemProgress(Struct, frozen=True, tag_field="type"):
    sequence_number: int
    item_id: str
    output_index: int


class OutputTextDelta(_ItemProgress, frozen=True, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[ResponseLogprob, ...] = ()
    content_index: int = 0


class OutputTextDone(_ItemProgress, frozen=True, tag="response.output_text.done"):
    text: str
    logprobs: tuple[ResponseLogprob, ...] = ()
    content_index: int = 0


class ReasoningDelta(_ItemProgress, frozen=True, tag="response.reasoning_text.delta"):
    delta: str
    content_index: int = 0


class ReasoningDone(_ItemProgress, frozen=True, tag="response.reasoning_text.done"):
    text: str
    content_index: int = 0


class ArgumentsDelta(_ItemProgress, frozen=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_ItemProgress, frozen=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(_ItemProgress, frozen=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(_ItemProgress, frozen=True, tag="response.custom_tool_call_input.done"):
    input: str
