"""Decides which slot KV lives in, what is evicted for it, and which moves that takes.

Law: an entry's `tokens` are exactly the tokens whose KV its slot or blob holds, once the moves handed out
so far have been carried out in order. So every method here that changes where an entry lives also records
the moves, and nothing else does.
"""

from dataclasses import dataclass, field
from typing import Final

from ganglion.scheduler.cells import SharedCells
from ganglion.scheduler.prefix import BLOCK
from ganglion.scheduler.prefix_catalogue import KvEntry, PrefixCatalogue, SequenceId, last_used
from ganglion.scheduler.slots import (
    Copy,
    Discard,
    KvContextShape,
    Move,
    Restore,
    Save,
    Share,
    Slot,
    Trim,
)

NEAR: Final = 32
"""How many slots may lie idle between two in use: their rows cost a device less than a batch of its own."""
SHARE_FROM: Final = 256
"""A prefix in the shared context that is at least this long is worth reading once for all who share it."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The KV contexts, smallest private slots first and the shared one last, and how much may be parked."""

    kv_contexts: tuple[KvContextShape, ...]
    parked_tokens: int
    can_trim: bool = True
    """False for models with recurrent state, whose KV is all or nothing."""
    run_tokens: int = 0
    """How many tokens are computed while one piece of cells is read: what lies in many pieces is not worth
    parking. Nothing in main memory; each piece is a copy of its own for every layer of a GPU."""
    can_move: bool = True
    """Whether KV can be carried from one context to another."""
    is_parked: bool = True
    """Whether what gives way is kept in a blob; else it is computed again, where that is as quick and saving
    it would hold up whoever decodes."""
    is_compact: bool = False
    """Whether those who run lie side by side in private contexts: every gap costs a pass over the weights."""


@dataclass(slots=True)
class _PoolContext:
    """One KV context and what its slots hold."""

    shape: KvContextShape
    slots: list[KvEntry | None]
    cells: SharedCells = field(default_factory=SharedCells)

    def idle(self, keep: KvEntry | None) -> list[KvEntry]:
        """The entries that nobody runs, but for the one to keep."""
        return [
            entry for entry in self.slots if entry is not None and entry.owner is None and entry is not keep
        ]


class SlotTable:
    """Owns the slots, the shared cells and the moves; the pool says which entry is wanted where."""

    def __init__(self, shape: PoolShape, catalogue: PrefixCatalogue) -> None:
        assert shape.kv_contexts
        assert shape.kv_contexts[-1].is_shared
        self._shape = shape
        self._catalogue = catalogue
        self.contexts = [_PoolContext(each, [None] * each.slots) for each in shape.kv_contexts]
        self.shared = self.contexts[-1]
        self.shared_context = len(self.contexts) - 1
        """The number of the shared context, the last one."""
        self.is_shared_locked = False
        """Whether a step runs on the shared context in the background, so that nothing may need a move."""
        self.promised: dict[SequenceId, int] = {}
        """Cells of the shared context that running sequences are about to take, several in one step."""
        self.parked_tokens = 0
        self.moves: list[Move] = []

    # What fits where

    def is_exact(self, slot: Slot | None) -> bool:
        """Whether a slot is kept for prompts whose numbers are wanted."""
        return slot is not None and self.contexts[slot.kv_context].shape.is_exact

    def private_contexts(self, *, is_exact: bool = False) -> list[tuple[int, _PoolContext]]:
        """The contexts of private slots and their numbers, smallest slots first."""
        contexts = enumerate(self.contexts[:-1])
        return [(number, context) for number, context in contexts if is_exact or not context.shape.is_exact]

    def fits_private(self, room: int, *, is_exact: bool = False) -> bool:
        """Whether some private slot is large enough."""
        return any(room <= context.shape.cells for _, context in self.private_contexts(is_exact=is_exact))

    def fits(self, entry: KvEntry, room: int) -> bool:
        """Whether an entry can grow to `room` tokens where it is."""
        if entry.slot is None:
            return False
        shape = self.contexts[entry.slot.kv_context].shape
        if not shape.is_shared:
            return room <= shape.cells
        return self._can_make_room(room - len(entry.tokens), keep=entry)

    def can_carry(self, source: KvEntry, slot: Slot) -> bool:
        """Whether a part of the source can be brought here: blobs are read whole and cut afterwards.

        What the target cannot hold whole passes through a spare slot of the shared context.
        """
        if source.slot is not None and source.slot.kv_context == self.shared_context:
            return True
        shape = self.contexts[slot.kv_context].shape
        if not shape.is_shared and len(source.tokens) <= shape.cells:
            return True
        if self.is_shared_locked:
            return False
        return self.shared.cells.used + len(source.tokens) <= self.shared.shape.cells

    # Slots

    def find_slot(
        self, room: int, source: KvEntry | None, length: int, *, is_private: bool = False
    ) -> Slot | None:
        """A slot for `room` tokens: beside its source when they share much, else the smallest that fits."""
        if (
            not is_private
            and source is not None
            and source.slot is not None
            and source.slot.kv_context == self.shared_context
            and length >= SHARE_FROM
        ):
            slot = self._shared_slot(room - length, keep=source)
            if slot is not None:
                return slot
        for number, context in self.private_contexts(is_exact=is_private):
            if room <= context.shape.cells:
                slot = self._free_slot(number, keep=source)
                if slot is not None:
                    return slot
        return None if is_private else self._shared_slot(room, keep=source)

    def _free_slot(self, number: int, keep: KvEntry | None) -> Slot | None:
        """An empty slot of a context, or that of the entry which was idle for longest."""
        context = self.contexts[number]
        if self._shape.is_compact and not context.shape.is_shared:
            return self._nearest_slot(number, keep)
        for index, entry in enumerate(context.slots):
            if entry is None:
                return Slot(number, index)
        idle = context.idle(keep)
        if not idle:
            return None
        oldest = min(idle, key=last_used)
        slot = oldest.slot
        self.evict(oldest)
        return slot

    def _nearest_slot(self, number: int, keep: KvEntry | None) -> Slot | None:
        """A slot near those in use: there an empty one, or that of the entry which was idle for longest."""
        slots = self.contexts[number].slots
        active = [index for index, entry in enumerate(slots) if entry is not None and entry.owner is not None]

        def rank(index: int) -> tuple[int, bool, int, int]:
            distance = min((abs(index - each) for each in active), default=0)
            entry = slots[index]
            age = -1 if entry is None else last_used(entry)
            return max(distance - NEAR, 0), entry is not None, age, index

        free = [
            index
            for index, entry in enumerate(slots)
            if entry is None or (entry.owner is None and entry is not keep)
        ]
        if not free:
            return None
        index = min(free, key=rank)
        entry = slots[index]
        if entry is not None:
            self.evict(entry)
        return Slot(number, index)

    def _shared_slot(self, room: int, keep: KvEntry | None) -> Slot | None:
        if self.is_shared_locked or not self._can_make_room(room, keep=keep):
            return None
        slot = self._free_slot(self.shared_context, keep)
        return slot if slot is not None and self.make_room(room, keep=keep) else None

    def _can_make_room(self, count: int, keep: KvEntry | None) -> bool:
        """Whether evicting idle entries of the shared context would free `count` cells."""
        count += sum(self.promised.values())
        if self.shared.cells.used + count <= self.shared.shape.cells:
            return True
        # Cells that an idle entry shares with a running one stay; owned lengths bound what must stay.
        kept = sum(
            len(entry.tokens)
            for entry in self.shared.slots
            if entry is not None and (entry.owner is not None or entry is keep)
        )
        return min(kept, self.shared.cells.used) + count <= self.shared.shape.cells

    def make_room(self, count: int, keep: KvEntry | None) -> bool:
        """Evict idle entries of the shared context until `count` cells are free."""
        count += sum(self.promised.values())
        while self.shared.cells.used + count > self.shared.shape.cells:
            idle = self.shared.idle(keep)
            if not idle:
                return False
            self.evict(min(idle, key=last_used))
        return True

    def migrate(self, entry: KvEntry, need: int) -> bool:
        """Move a sequence that outgrew its private slot to a roomier one."""
        old = entry.slot
        assert old is not None
        slot: Slot | None = None
        for number in range(old.kv_context + 1, self.shared_context):
            if slot is None and need <= self.contexts[number].shape.cells:
                slot = self._free_slot(number, keep=entry)
        slot = slot or self._shared_slot(need, keep=entry)
        if slot is None:
            return False
        self.moves.append(Copy(old, slot, len(entry.tokens)))
        self.moves.append(Trim(old, 0))
        self.contexts[old.kv_context].slots[old.index] = None
        self.contexts[slot.kv_context].slots[slot.index] = entry
        entry.slot = slot
        if slot.kv_context == self.shared_context:
            self.shared.cells.extend(slot.index, len(entry.tokens))
        return True

    # Entries

    def new_entry(self, salt: str, tokens: list[int], slot: Slot) -> KvEntry:
        """An entry in an empty slot."""
        entry = self._catalogue.add(salt, tokens, slot)
        self.contexts[slot.kv_context].slots[slot.index] = entry
        return entry

    def fill(self, entry: KvEntry, source: KvEntry, length: int) -> None:
        """Bring the first `length` tokens of the source into a new entry's slot."""
        assert entry.slot is not None
        self._catalogue.touch(source)
        if source.slot is None:
            assert source.blob is not None
            self.moves.append(Restore(source.blob, entry.slot, length))
        elif source.slot.kv_context == entry.slot.kv_context == self.shared_context:
            self.moves.append(Share(source.slot, entry.slot, length))
            self.shared.cells.share(source.slot.index, entry.slot.index, length)
            return
        else:
            self.moves.append(Copy(source.slot, entry.slot, length))
        if entry.slot.kv_context == self.shared_context:
            self.shared.cells.extend(entry.slot.index, length)

    def trim(self, entry: KvEntry, length: int) -> None:
        """Let an entry forget what lies beyond `length` tokens."""
        if length == len(entry.tokens):
            return
        assert entry.slot is not None
        self._catalogue.cut(entry, length)
        self.moves.append(Trim(entry.slot, length))
        if entry.slot.kv_context == self.shared_context:
            self.shared.cells.trim(entry.slot.index, length)

    def evict(self, entry: KvEntry) -> None:
        """Take an idle entry's slot, keeping it in a blob unless another entry holds all of it anyway."""
        slot = entry.slot
        assert slot is not None
        assert entry.owner is None
        if self._catalogue.is_covered(entry) or not self._is_worth_parking(entry, slot):
            self.forget(entry)
            return
        entry.blob = entry.key
        self.moves.append(Save(slot, entry.blob))
        self._vacate(entry, slot)
        self.parked_tokens += len(entry.tokens)

    def forget(self, entry: KvEntry) -> None:
        """Drop an entry and its KV."""
        if entry.slot is not None:
            self._vacate(entry, entry.slot)
        if entry.blob is not None:
            self.moves.append(Discard(entry.blob))
            self.parked_tokens -= len(entry.tokens)
        self._catalogue.remove(entry.key)

    def bound_parked(self) -> None:
        """Forget the oldest blobs until what is parked is no more than may be."""
        while self.parked_tokens > self._shape.parked_tokens:
            self.forget(self._catalogue.oldest_parked())

    def _is_worth_parking(self, entry: KvEntry, slot: Slot) -> bool:
        if not self._shape.is_parked or len(entry.tokens) < BLOCK:
            return False
        if not self._shape.can_move and self.is_exact(slot):
            return False
        is_shared = slot.kv_context == self.shared_context
        cost_tokens = self._shape.run_tokens * self.shared.cells.runs(slot.index) if is_shared else 0
        return cost_tokens <= len(entry.tokens) <= self._shape.parked_tokens

    def _vacate(self, entry: KvEntry, slot: Slot) -> None:
        self.moves.append(Trim(slot, 0))
        self.contexts[slot.kv_context].slots[slot.index] = None
        if slot.kv_context == self.shared_context:
            self.shared.cells.trim(slot.index, 0)
        entry.slot = None
