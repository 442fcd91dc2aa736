"""The items of a conversation: as clients send them, and as they are kept and listed.

Null means the same as absent everywhere. Every item that is kept has an id.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, cast

from msgspec import Meta, Raw, Struct

from ganglion.core.request import ImageDetail

MAX_ID_LENGTH = 256
ItemId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH)]
Status = Literal["in_progress", "completed", "incomplete"]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
_CallId = Annotated[str, Meta(min_length=1, max_length=512)]


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of a model; annotations and logprobs are kept as they came."""

    text: str
    annotations: list[Raw] | None = None
    logprobs: list[Raw] | None = None


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="input_image"):
    """An image, for a model that sees: it is kept and listed as it was sent."""

    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None


class InputFile(Struct, frozen=True, tag_field="type", tag="input_file"):
    """A file; refused."""


class InputAudio(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Audio; refused."""


Part = InputText | OutputText | Refusal | InputImage | InputFile | InputAudio


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class _IdentifiedItem(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    id: ItemId | None = None


class MessageItem(_IdentifiedItem, frozen=True, kw_only=True, tag="message"):
    """A turn of anybody's, whose content is a text or parts."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Part], Meta(max_length=4096)]
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(_IdentifiedItem, frozen=True, kw_only=True, tag="function_call"):
    call_id: _CallId
    name: Name
    namespace: Name | None = None
    arguments: str
    status: Status | None = None


class _CallOutputItem(_IdentifiedItem, frozen=True, kw_only=True):
    call_id: _CallId
    output: str | Annotated[list[Part], Meta(max_length=4096)]
    status: Status | None = None


class FunctionCallOutputItem(_CallOutputItem, frozen=True, tag="function_call_output"):
    pass


class CustomToolCallItem(_IdentifiedItem, frozen=True, kw_only=True, tag="custom_tool_call"):
    call_id: _CallId
    name: Name
    namespace: Name | None = None
    input: str
    status: Status | None = None


class CustomToolCallOutputItem(_CallOutputItem, frozen=True, tag="custom_tool_call_output"):
    pass


class ReasoningItem(_IdentifiedItem, frozen=True, kw_only=True, tag="reasoning"):
    """Earlier reasoning: its own text, or the blob that we sealed it in."""

    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class CompactionItem(_IdentifiedItem, frozen=True, kw_only=True, tag="compaction"):
    """A compacted conversation, sealed by us."""

    encrypted_content: str


class AdditionalToolsItem(_IdentifiedItem, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that a client offers from inside its input."""

    role: Literal["developer"] = "developer"
    tools: Annotated[list[Raw], Meta(max_length=1024)]


class ItemReference(Struct, frozen=True, tag_field="type", tag="item_reference"):
    """An item that the server kept, by its id."""

    id: ItemId


class ForeignItem(Struct, frozen=True):
    """An item of a tool that another server runs, as it came; see `foreign`."""

    type: str
    id: ItemId | None
    raw: Raw
    """The whole item; once it is kept, with its id."""


OwnItem = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomToolCallItem
    | CustomToolCallOutputItem
    | ReasoningItem
    | CompactionItem
    | AdditionalToolsItem
)
"""What is understood here."""
Item = OwnItem | ForeignItem
"""What a conversation is kept as: no references, and every id is set."""

PREFIXES = {
    MessageItem: "msg",
    FunctionCallItem: "fc",
    FunctionCallOutputItem: "fco",
    CustomToolCallItem: "ctc",
    CustomToolCallOutputItem: "ctco",
    ReasoningItem: "rs",
    CompactionItem: "cmp",
    AdditionalToolsItem: "at",
}
"""What an id begins with."""


def encodable(items: Iterable[Item]) -> tuple[OwnItem, ...]:
    """The items as an encoder takes them: a foreign one is the JSON that it came as."""
    return tuple(cast(OwnItem, item.raw) if isinstance(item, ForeignItem) else item for item in items)
