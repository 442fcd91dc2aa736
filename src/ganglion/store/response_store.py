"""The protocol of a store of responses and conversations.

Laws: a write that returned is on disk, and survives the process, the kernel and the power. Each method names
one tenant and sees nothing of another's; another tenant's rows look exactly like rows that do not exist. Only
`abandoned` and `sweep`, the server's own upkeep, look at all tenants.

Cancelling a write while it waits leaves open whether it is made. Every method may raise StoreUnavailable,
StorageFull, StoreUnusable, or Overloaded when too much waits already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from ganglion.core.errors import InvalidValue

# The store never reads bodies; the wire that wrote them does.

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_UNFINISHED: Final = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer, which its tenant may fetch again.

    `input_items` is what this request itself sent; what came before is reached through `previous_id` or
    `conversation_id`.
    """

    tenant: str
    id: str
    created_s: float
    status: Status
    model: str
    body: bytes
    input_items: bytes
    previous_id: str | None = None
    conversation_id: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether its status is final."""
        return self.status not in _UNFINISHED


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One frame of a response's stream, kept so that a reader may resume it."""

    sequence_number: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A list of items to which many responses append."""

    tenant: str
    id: str
    created_s: float
    metadata: bytes


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item on its way into a conversation."""

    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of a conversation; positions rise in the order of appending and are never used again."""

    position: int
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class AbandonedResponse:
    """An unfinished response whose server is gone, with the number of its last kept event."""

    response: StoredResponse
    last_sequence_number: int | None


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept: by age, and all bodies together by size; None keeps everything."""

    max_age_s: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep removed."""

    responses: int = 0
    conversations: int = 0
    size_bytes: int = 0


MAX_NAME_BYTES: Final = 512
"""Tenants and ids, in UTF-8: three of them must fit into one index entry of PostgreSQL (2,704 bytes)."""
MAX_CHAIN: Final = 1_000
MAX_CHAIN_BYTES: Final = 16 * 2**20
"""More history than any context holds; beyond it the chain is cut rather than the memory filled."""
PAGE: Final = 100
MAX_PAGE_BYTES: Final = 16 * 2**20
"""What a page of items holds at most: a client may send items of megabytes, and ask for a hundred of them."""


class Store(Protocol):
    """Responses, streams that outlive their client, and conversations, each under its tenant."""

    async def put(
        self, response: StoredResponse, *, items: Sequence[NewItem] = (), events: Sequence[StoredEvent] = ()
    ) -> None:
        """Keep a response under its id, in one commit with items of its conversation and events.

        A response that the id named before is overwritten. Items of a conversation that is gone are dropped.
        """

    async def replace(
        self, response: StoredResponse, *, items: Sequence[NewItem] = (), events: Sequence[StoredEvent] = ()
    ) -> bool:
        """As `put`, but only while the kept one is unfinished: False when it ended before, or is gone.

        So of a cancellation, an ending and a deletion that race, the first one wins.
        """

    async def response(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response of that id."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Remove a response and its events; False when there was none. What continues it stays."""

    async def chain(
        self, tenant: str, response_id: str, *, limit: int = MAX_CHAIN, max_bytes: int = MAX_CHAIN_BYTES
    ) -> tuple[StoredResponse, ...]:
        """A response and those before it, oldest first; empty when the id names none.

        It is whole when the first one has no `previous_id`; otherwise that one is gone, or a limit was met.
        """

    async def append_events(self, tenant: str, response_id: str, events: Sequence[StoredEvent]) -> bool:
        """Keep frames of an unfinished response's stream; False when it ended before, or is gone.

        Kept numbers stay.
        """

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit: int = PAGE
    ) -> tuple[StoredEvent, ...]:
        """The kept frames after a number, in order."""

    async def create_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> None:
        """Keep a new conversation with its first items."""

    async def conversation(self, tenant: str, conversation_id: str) -> StoredConversation | None:
        """The conversation of that id."""

    async def set_metadata(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Give a conversation other metadata; False when there is none."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Remove a conversation with its items; False when there was none."""

    async def append_items(self, tenant: str, conversation_id: str, items: Sequence[NewItem]) -> bool:
        """Add items at the end; False when there is no such conversation.

        An item whose id the conversation holds already stays as it is: sending one again adds nothing.
        """

    async def items(
        self,
        tenant: str,
        conversation_id: str,
        *,
        after: int | None = None,
        limit: int = PAGE,
        is_descending: bool = False,
    ) -> tuple[StoredItem, ...]:
        """Items beyond a position, in the order of positions or against it.

        Fewer than `limit` where they are large, but always one while there is one.
        """

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> StoredItem | None:
        """One item of a conversation."""

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        """Remove one item; False when there was none."""

    async def abandoned(self, limit: int = PAGE) -> tuple[AbandonedResponse, ...]:
        """Unfinished responses of servers that are gone, of every tenant: what a crash cut off."""

    async def sweep(self, retention: Retention) -> SweepResult:
        """Remove what is too old, then the oldest until the rest is small enough; unfinished ones stay.

        A response is as old as its creation, a conversation as its last item.
        """

    async def secret(self, name: str) -> bytes:
        """32 random bytes, created when the name is first used and the same ever after."""

    async def close(self) -> None:
        """Finish what waits, then close the database."""


def is_name(*texts: str) -> bool:
    """Whether each text can be a key; one that cannot names nothing."""
    return all(_is_name(text) for text in texts)


def check_names(**texts: str | None) -> None:
    """Raise InvalidValue for a name that cannot be a key; the keywords name the fields."""
    for param, text in texts.items():
        if text is not None and not _is_name(text):
            raise InvalidValue(
                f"{param} must be text of at most {MAX_NAME_BYTES} bytes without NUL, found {text[:64]!r}.",
                param=param,
            )


def _is_name(text: str) -> bool:
    try:
        return "\0" not in text and len(text.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False
