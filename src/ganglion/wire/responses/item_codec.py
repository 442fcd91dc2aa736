"""Turns the items that clients send into the items that are kept: typed, with ids, references resolved."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

import msgspec
from msgspec.structs import replace

from ganglion.core.errors import InvalidValue, ItemNotFound, MissingParameter
from ganglion.wire.decode import FIELDS, decode
from ganglion.wire.responses.hosted_items import FOREIGN
from ganglion.wire.responses.hosted_items import PREFIXES as FOREIGN_PREFIXES
from ganglion.wire.responses.items import (
    MAX_ID_LENGTH,
    PREFIXES,
    AdditionalToolsItem,
    CompactionItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    ForeignItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    ItemReference,
    MessageItem,
    OutputText,
    OwnItem,
    Part,
    ReasoningItem,
    encodable,
)

Ids = Callable[[str], str]
"""A fresh id that begins with the prefix, as `msg` in `msg_0f…`."""

ReadItem = Item | ItemReference
_TypedItem = OwnItem | ItemReference


class _Peek(msgspec.Struct, frozen=True):
    """The fields that tell one kind of item from another."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


_peek = msgspec.json.Decoder(_Peek)
_kept = msgspec.json.Decoder(list[OwnItem])
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_DECODERS: Mapping[str, msgspec.json.Decoder[_TypedItem]] = {
    str(kind.__struct_config__.tag): msgspec.json.Decoder(kind) for kind in get_args(_TypedItem)
}


def read_items(sent: str | Sequence[msgspec.Raw] | None, path: str = "input") -> tuple[ReadItem, ...]:
    """The items of an input, each by its type; a text is a user's message."""
    if sent is None:
        return ()
    if isinstance(sent, str):
        return (MessageItem(role="user", content=sent),)
    return tuple(_read(raw, f"{path}[{place}]") for place, raw in enumerate(sent))


def references(items: Iterable[ReadItem]) -> tuple[str, ...]:
    """The ids of kept items that these refer to, in order."""
    named = (item.id for item in items if isinstance(item, ItemReference) or _is_bare(item))
    return tuple(name for name in named if name is not None)


def kept_items(
    items: Iterable[ReadItem], ids: Ids, referenced: Mapping[str, Item], path: str = "input"
) -> tuple[Item, ...]:
    """The items in the form they are kept and listed in; raises ItemNotFound for an unknown reference."""
    return tuple(
        _resolved(item, referenced, f"{path}[{place}]")
        if isinstance(item, ItemReference)
        else _kept_form(_remembered(item, referenced), ids)
        for place, item in enumerate(items)
    )


def encode_items(items: Sequence[Item]) -> bytes:
    """Kept items as the JSON array that a store holds."""
    return msgspec.json.encode(encodable(items))


def items_of(*stored: bytes) -> tuple[Item, ...]:
    """The items of stored JSON arrays, in order: a response's input and then its output."""
    return tuple(item for part in stored for item in _stored_items(part))


def _stored_items(stored: bytes) -> Sequence[Item]:
    try:
        return _kept.decode(stored)
    except msgspec.ValidationError:  # there are foreign ones among them
        return [_stored_item(raw) for raw in _raw_items.decode(stored)]


def _stored_item(raw: msgspec.Raw) -> Item:
    seen = _peek.decode(raw)
    if seen.type in FOREIGN:
        return ForeignItem(seen.type, seen.id, raw)
    return _kept.decode(b"[%b]" % bytes(raw))[0]


def _read(raw: msgspec.Raw, path: str) -> ReadItem:
    seen = decode(_peek, raw, path)
    kind = seen.type
    if kind is None:
        if seen.role is None and seen.id is None:
            raise MissingParameter(f"The parameter '{path}.type' is required.", param=f"{path}.type")
        kind = "message" if seen.role is not None else "item_reference"
        raw = _without_type(raw)
    if kind in FOREIGN:
        return ForeignItem(kind, _identity(seen.id, path), raw.copy())
    decoder = _DECODERS.get("compaction" if kind == "compaction_summary" else kind)
    if decoder is None:
        raise InvalidValue(
            f"Items of the type {kind[:64]!r} are not understood here.",
            param=f"{path}.type",
            hint=f"Understood are: {', '.join((*_DECODERS, *FOREIGN))}.",
        )
    return decode(decoder, raw if kind in _DECODERS else _without_type(raw), path)


def _identity(identity: str | None, path: str) -> str | None:
    if identity is not None and not 0 < len(identity) <= MAX_ID_LENGTH:
        raise InvalidValue(f"'{path}.id' has 1 to {MAX_ID_LENGTH} characters.", param=f"{path}.id")
    return identity


def _without_type(raw: msgspec.Raw) -> msgspec.Raw:
    fields = FIELDS.decode(raw)
    fields.pop("type", None)
    return msgspec.Raw(msgspec.json.encode(fields))


def _resolved(reference: ItemReference, referenced: Mapping[str, Item], path: str) -> Item:
    try:
        return referenced[reference.id]
    except KeyError:
        raise ItemNotFound(f"There is no item {reference.id[:200]!r} here.", param=f"{path}.id") from None


def _is_bare(item: ReadItem) -> bool:
    return isinstance(item, ReasoningItem) and not item.content and not item.encrypted_content


def _remembered(item: Item, referenced: Mapping[str, Item]) -> Item:
    # A client that knows only summaries drops our reasoning from a stream and sends the bare item back:
    # its id is enough where we kept it, and where we did not the conversation goes on without that thought.
    return referenced.get(item.id or "", item) if _is_bare(item) else item


def _kept_form(item: Item, ids: Ids) -> Item:
    if isinstance(item, ForeignItem):
        return item if item.id else _identified(item, ids(FOREIGN_PREFIXES[item.type]))
    identity = item.id or ids(PREFIXES[type(item)])
    match item:
        case MessageItem(content=content, role=role):
            return replace(
                item, id=identity, content=_parts(content, role), status=item.status or "completed"
            )
        case FunctionCallItem() | CustomToolCallItem():
            return replace(item, id=identity, status=item.status or "completed")
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            return replace(item, id=identity, status=item.status or "completed")
        case ReasoningItem():
            return replace(item, id=identity, summary=item.summary or [])
        case CompactionItem() | AdditionalToolsItem():
            return replace(item, id=identity)


def _identified(item: ForeignItem, identity: str) -> ForeignItem:
    fields = {**FIELDS.decode(item.raw), "id": msgspec.Raw(msgspec.json.encode(identity))}
    return ForeignItem(item.type, identity, msgspec.Raw(msgspec.json.encode(fields)))


def _parts(content: str | list[Part], role: str) -> list[Part]:
    if isinstance(content, str):
        return [OutputText(content, [], []) if role == "assistant" else InputText(content)]
    return [
        OutputText(part.text, part.annotations or [], part.logprobs or [])
        if isinstance(part, OutputText)
        else part
        for part in content
    ]
