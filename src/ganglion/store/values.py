"""What is kept: responses, their events, conversations, their items.

Bodies are bytes that the store never looks into; the wire that wrote them reads them.
"""

from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
UNFINISHED: Final = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer as its tenant may ask for it again.

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
        """Whether its status will not change any more."""
        return self.status not in UNFINISHED


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One frame of a response's stream, kept so that a reader may come back for it."""

    sequence_number: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A list of items that many responses continue."""

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
class Abandoned:
    """An unfinished response whose server is gone, with the number of its last kept event."""

    response: StoredResponse
    last_sequence_number: int | None


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept at most: by age, and all bodies together by size; None keeps everything."""

    max_age_s: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep removed."""

    responses: int = 0
    conversations: int = 0
    size_bytes: int = 0
