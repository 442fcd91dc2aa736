"""What the store of responses and conversations keeps, and how much of it."""

from dataclasses import dataclass
from typing import Final, Literal

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
