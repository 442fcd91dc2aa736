"""Bodies for stored state: responses, pages of items, counts, compactions and conversations."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from ganglion.core.errors import GanglionError, Interrupted
from ganglion.core.events import Usage
from ganglion.wire.decode import FIELDS, decode
from ganglion.wire.frame import Frame
from ganglion.wire.responses.item_codec import ReadItem, read_items
from ganglion.wire.responses.items import Item, OwnItem, encodable
from ganglion.wire.responses.response_object import ResponseStatus, ResponseUsage, error_of, usage_of
from ganglion.wire.responses.schema import ConversationBody, ConversationUpdateBody, ItemsBody
from ganglion.wire.responses.stream_events import Lifecycle, LifecycleEvent

_encode = msgspec.json.Encoder().encode
_conversation = msgspec.json.Decoder(ConversationBody)
_update = msgspec.json.Decoder(ConversationUpdateBody)
_added = msgspec.json.Decoder(ItemsBody)


class _TypedItem(Struct, frozen=True):
    type: str


_typed = msgspec.json.Decoder(_TypedItem)


class _Ended(Struct, frozen=True):
    status: ResponseStatus


_ended = msgspec.json.Decoder(_Ended)
_ENDS: dict[str, Lifecycle] = {"completed": "response.completed", "failed": "response.failed"}
_IN_PROGRESS: Final = 2
"""Its number in the background, where every stream begins with `created` and `queued`."""
_LAST: Final = ("response.completed", "response.incomplete", "response.failed")


class ItemList(Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: tuple[OwnItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class CompactedResponse(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: tuple[OwnItem, ...]
    usage: ResponseUsage


class ConversationObject(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


def response_with(response: bytes, status: ResponseStatus, error: GanglionError | None = None) -> bytes:
    """A stored response in another status: cancelled, or failed with its error."""
    fields = FIELDS.decode(response)
    told = None if error is None else error_of(error)
    return _encode({**fields, "status": Raw(_encode(status)), "error": Raw(_encode(told))})


def named_frame(data: bytes) -> Frame:
    """A kept event as it went out."""
    return Frame(data, _typed.decode(data).type)


def is_last(frame: Frame) -> bool:
    """Whether a stream ends with this event."""
    return frame.event in _LAST


def last_frames(response: bytes, number: int) -> list[Frame]:
    """The events that tell how a response ended, from that number on, to a reader who lacks them."""
    kind: Lifecycle = _ENDS.get(_ended.decode(response).status, "response.incomplete")
    if number == _IN_PROGRESS:
        running = response_with(response, "in_progress")
        return [
            _lifecycle_frame("response.in_progress", number, running),
            _lifecycle_frame(kind, number + 1, response),
        ]
    return [_lifecycle_frame(kind, number, response)]


def interrupted(response: bytes) -> bytes:
    """A response that its server did not live to finish."""
    return response_with(
        response, "failed", Interrupted("The server stopped while this response was running.")
    )


def _lifecycle_frame(kind: Lifecycle, number: int, response: bytes) -> Frame:
    return Frame(_encode(LifecycleEvent(kind, number, Raw(response))), kind)


def output_of(response: bytes) -> bytes:
    """The JSON array of a response's output items, as `items_of` reads it."""
    return bytes(FIELDS.decode(response)["output"])


def page(items: Sequence[Item], *, has_more: bool) -> bytes:
    """A page of kept items, in the order given."""
    first, last = (items[0].id, items[-1].id) if items else (None, None)
    return _encode(ItemList(data=encodable(items), first_id=first, last_id=last, has_more=has_more))


def item(kept: Item) -> bytes:
    """One kept item."""
    return _encode(encodable((kept,))[0])


def deleted(response_id: str) -> bytes:
    """The body of a deletion."""
    return _encode(DeletedResponse(id=response_id))


def input_tokens(count: int) -> bytes:
    """The body with the length of a prompt."""
    return _encode(InputTokens(input_tokens=count))


def compaction(identity: str, created_s: int, output: Sequence[Item], usage: Usage) -> bytes:
    """A compacted conversation."""
    return _encode(
        CompactedResponse(id=identity, created_at=created_s, output=encodable(output), usage=usage_of(usage))
    )


def conversation(identity: str, created_s: int, metadata: dict[str, str]) -> bytes:
    """A conversation."""
    return _encode(ConversationObject(id=identity, created_at=created_s, metadata=metadata))


def conversation_deleted(identity: str) -> bytes:
    """The body of a conversation's deletion; its items stay where responses hold them."""
    return _encode(DeletedConversation(id=identity))


def read_conversation(body: bytes) -> tuple[tuple[ReadItem, ...], dict[str, str]]:
    """The items and metadata that a conversation begins with."""
    fields = decode(_conversation, body)
    return read_items(fields.items, "items"), fields.metadata or {}


def read_update(body: bytes) -> dict[str, str]:
    """The new metadata of a conversation."""
    return decode(_update, body).metadata or {}


def read_added(body: bytes) -> tuple[ReadItem, ...]:
    """The items that a call adds to a conversation."""
    return read_items(decode(_added, body).items, "items")
