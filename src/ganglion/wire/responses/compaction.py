"""Seals reasoning that travels with its item, and conversations that were compacted.

A blob says which of the two it is, so that one is never taken for the other.
"""

from collections.abc import Sequence

from ganglion.wire.responses.item_codec import encode_items, items_of
from ganglion.wire.responses.items import CompactionItem, Item
from ganglion.wire.seal import Seal

SUMMARY_TOKENS = 1024
"""How long the summary of a compacted conversation may be."""
_REASONING = b"reasoning:"
_COMPACTION = b"compaction:"


def seal_reasoning(text: str, seal: Seal) -> str:
    """The blob that stands for reasoning."""
    return seal.seal(_REASONING + text.encode("utf-8", "replace"))


def open_reasoning(blob: str, seal: Seal) -> str | None:
    """The reasoning of a blob; None when it was not sealed here."""
    payload = seal.open(blob)
    if payload is None or not payload.startswith(_REASONING):
        return None
    return payload[len(_REASONING) :].decode()


def compacted(items: Sequence[Item], seal: Seal, identity: str) -> CompactionItem:
    """One item that stands for others; they hold no compaction themselves, see `flat`."""
    return CompactionItem(id=identity, encrypted_content=seal.seal(_COMPACTION + encode_items(items)))


def open_compaction(blob: str, seal: Seal) -> tuple[Item, ...] | None:
    """The items that a compaction stands for, flat; None when it was not sealed here."""
    payload = seal.open(blob)
    if payload is None or not payload.startswith(_COMPACTION):
        return None
    items = items_of(payload[len(_COMPACTION) :])
    return tuple(item for item in items if not isinstance(item, CompactionItem))


def flat(items: Sequence[Item], seal: Seal) -> tuple[Item, ...]:
    """The items with every compaction among them unfolded; one that does not open is left out."""
    return tuple(
        inner
        for item in items
        for inner in (
            open_compaction(item.encrypted_content, seal) or ()
            if isinstance(item, CompactionItem)
            else (item,)
        )
    )
