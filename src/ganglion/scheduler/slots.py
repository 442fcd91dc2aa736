"""The slots where KV lives, and the moves that carry it between them.

A slot belongs to one native KV context. A *private* context gives each slot its own cells, which decodes
fastest; the *shared* context is one field of cells in which slots share a common prefix for nothing, and
holds what is too long for a private slot. An *exact* context is a private one that only prompts use whose
numbers are wanted. Copies through memory cost about a microsecond a token, prefill three thousand.
"""

from dataclasses import dataclass

BlobId = int


@dataclass(frozen=True, slots=True)
class KvContextShape:
    """`cells` is what each slot owns in a private context, and what all slots share in the shared one."""

    slots: int
    cells: int
    is_shared: bool
    is_exact: bool = False
    """Private, and kept for prompts whose numbers are wanted and that fit no other private slot."""

    @property
    def total_cells(self) -> int:
        """How many tokens the context can hold."""
        return self.cells if self.is_shared else self.slots * self.cells


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of one KV context, both by number; 0 is the first."""

    kv_context: int
    index: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Forget everything from position `length` on; 0 empties the slot."""

    slot: Slot
    length: int


@dataclass(frozen=True, slots=True)
class Share:
    """Let the target slot of the same shared context see the first `length` cells of the source."""

    source: Slot
    target: Slot
    length: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first `length` positions into a slot of any context."""

    source: Slot
    target: Slot
    length: int


@dataclass(frozen=True, slots=True)
class Save:
    """Write a slot's KV to a blob in memory."""

    slot: Slot
    blob: BlobId


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the first `length` positions of a blob into a slot."""

    blob: BlobId
    slot: Slot
    length: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Free a blob."""

    blob: BlobId


Move = Trim | Share | Copy | Save | Restore | Discard
