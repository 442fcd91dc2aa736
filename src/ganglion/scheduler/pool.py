"""The one owner of KV: who holds which token list, who shares a prefix, what stays cached.

Law: an entry's `tokens` are exactly the tokens whose KV its slot or blob holds, once the moves handed out
so far have been carried out in order. Four verbs change that: attach, park, release, and adopt for KV that
comes from elsewhere. Sharing is part of attach. Which slot it is, and what makes room for it, is decided in
`slot_table.py`.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from ganglion.scheduler.pictures import Pictures
from ganglion.scheduler.prefix import BLOCK, LEAST, Digests
from ganglion.scheduler.prefix_catalogue import KvEntry, PrefixCatalogue, SequenceId
from ganglion.scheduler.slot_table import SHARE_FROM, PoolShape, SlotTable
from ganglion.scheduler.slots import BlobId, Move, Slot


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A prefix that is worth keeping when the pool ends, and the slot or blob that holds its KV."""

    salt: str
    tokens: tuple[int, ...]
    source: Slot | BlobId


class KvPool:
    """Decides where KV lives; the runner carries out the moves it hands out."""

    def __init__(self, shape: PoolShape) -> None:
        self._shape = shape
        self._catalogue = PrefixCatalogue(can_trim=shape.can_trim)
        self._table = SlotTable(shape, self._catalogue)
        self._contexts = self._table.contexts
        self._shared = self._table.shared
        self._promised = self._table.promised
        self._moves = self._table.moves
        self._owned: dict[SequenceId, KvEntry] = {}
        self.shared_context = self._table.shared_context
        """The number of the shared context, the last one."""

    # What is where

    @property
    def total_cells(self) -> int:
        """How many tokens all contexts can hold."""
        return sum(context.shape.total_cells for context in self._contexts if not context.shape.is_exact)

    @property
    def used_cells(self) -> int:
        """How many cells of the contexts hold something, running or cached."""
        private = sum(
            len(entry.tokens)
            for context in self._contexts
            if not context.shape.is_shared and not context.shape.is_exact
            for entry in context.slots
            if entry is not None
        )
        return private + self._shared.cells.used

    @property
    def parked_tokens(self) -> int:
        """How many tokens lie in blobs."""
        return self._table.parked_tokens

    def slot(self, sequence: SequenceId) -> Slot:
        """Where a running sequence's KV is."""
        slot = self._owned[sequence].slot
        assert slot is not None
        return slot

    def held(self, sequence: SequenceId) -> int:
        """How many tokens of a running sequence have their KV."""
        return len(self._owned[sequence].tokens)

    def take_moves(self) -> tuple[Move, ...]:
        """Hand out what must be carried out, in order, before the next batch runs."""
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    def reusable(
        self, salt: str, tokens: Tokens[int], chain: Digests, limit: int, *, pictures: Pictures = ()
    ) -> int:
        """How many leading tokens, of `limit` at most, are cached somewhere."""
        match = self._catalogue.match(salt, tokens, chain, limit, pictures=pictures)
        return 0 if match is None else match[1]

    def find(
        self, salt: str, tokens: Tokens[int], chain: Digests, pictures: Pictures = ()
    ) -> tuple[Slot | BlobId, int] | None:
        """Where the longest cached prefix of some tokens lies once all moves are done, and its length."""
        match = self._catalogue.match(salt, tokens, chain, len(tokens), pictures=pictures)
        return None if match is None else (match[0].source, match[1])

    def hot(self) -> tuple[HotPrefix, ...]:
        """What holds KV once all moves are carried out, most recently used first.

        An entry that begins like a longer one is left out: the longer one stands for both.
        """
        return tuple(
            HotPrefix(entry.salt, tuple(entry.tokens), entry.source)
            for entry in self._catalogue.hottest()
            if len(entry.tokens) >= BLOCK and not self._catalogue.is_covered(entry, by_longer=True)
        )

    def lengths(self, kv_context: int) -> tuple[int, ...]:
        """How many tokens each slot of a context holds once all moves are carried out."""
        slots = self._contexts[kv_context].slots
        return tuple(0 if entry is None else len(entry.tokens) for entry in slots)

    @property
    def is_compact(self) -> bool:
        """Whether those who run in a private context lie side by side, and are planned in that order."""
        return self._shape.is_compact

    # The verbs

    def attach(
        self,
        sequence: SequenceId,
        salt: str,
        tokens: Tokens[int],
        chain: Digests,
        room: int,
        *,
        limit: int,
        exact_grain: int | None = None,
        pictures: Pictures = (),
    ) -> int | None:
        """Give a sequence a slot with room for `room` tokens; returns how many of its tokens it reuses.

        That is `limit` at most: the rest is run for its logits. With an `exact_grain` it is a multiple of it,
        and the slot is private if any private slot is large enough, since cells of others move bits.
        None means that nothing can be evicted to make room, and changes nothing.
        """
        assert sequence not in self._owned
        is_private = exact_grain is not None and self._table.fits_private(room, is_exact=True)

        def is_usable(entry: KvEntry) -> bool:
            return self._is_usable(entry, is_private=is_private)

        match = self._catalogue.match(salt, tokens, chain, limit, is_usable=is_usable, pictures=pictures)
        entry = None
        if match is not None and exact_grain is not None:
            match = self._at_grain(*match, exact_grain)
        if match is not None:
            entry = self._reuse(*match, room, is_private=is_private)
        if entry is None:
            slot = self._table.find_slot(room, None, 0, is_private=is_private)
            if slot is None:
                return None
            entry = self._table.new_entry(salt, [], slot)
        entry.owner = sequence
        self._catalogue.touch(entry)
        self._owned[sequence] = entry
        self._catalogue.index(entry, chain)
        self._table.bound_parked()
        return len(entry.tokens)

    def reserve(self, sequence: SequenceId, count: int) -> bool:
        """Promise a running sequence that it can grow by `count`, moving or evicting what is idle."""
        entry = self._owned[sequence]
        assert entry.slot is not None
        self._promised.pop(sequence, None)
        context = self._contexts[entry.slot.kv_context]
        need = len(entry.tokens) + count
        if context.shape.is_shared:
            has_room = self._table.make_room(count, keep=entry)
        else:
            has_room = need <= context.shape.cells or self._table.migrate(entry, need)
        if has_room and entry.slot.kv_context == self.shared_context:
            self._promised[sequence] = count
        self._table.bound_parked()
        return has_room

    def extend(self, sequence: SequenceId, tokens: Tokens[int], chain: Digests | None = None) -> None:
        """Record that a batch computed KV for more tokens of a sequence, after `reserve`."""
        entry = self._owned[sequence]
        assert entry.slot is not None
        self._promised.pop(sequence, None)
        entry.tokens.extend(tokens)
        if entry.slot.kv_context == self.shared_context:
            self._shared.cells.extend(entry.slot.index, len(tokens))
        if chain is not None:
            self._catalogue.index(entry, chain)

    def release(self, sequence: SequenceId, *, is_sound: bool = True) -> None:
        """The sequence ended; what it computed, if it is sound, stays cached until the slot is needed."""
        entry = self._owned.pop(sequence)
        self._promised.pop(sequence, None)
        entry.owner = None
        self._catalogue.touch(entry)
        if not is_sound or len(entry.tokens) < LEAST:
            self._table.forget(entry)
            return
        self._catalogue.index(entry)

    def park(self, sequence: SequenceId) -> None:
        """Take a running sequence's slot away, keeping its KV in a blob when there is room for it."""
        entry = self._owned[sequence]
        self.release(sequence)
        if entry.slot is not None:
            self._table.evict(entry)
        self._table.bound_parked()

    def adopt(self, salt: str, tokens: Tokens[int]) -> BlobId:
        """Take in KV from elsewhere as a parked entry; the runner must hold the blob from now on."""
        assert len(tokens) <= self._shape.parked_tokens
        entry = self._catalogue.add(salt, list(tokens))
        entry.blob = entry.key
        self._catalogue.touch(entry)
        self._catalogue.index(entry)
        self._table.parked_tokens += len(entry.tokens)
        self._table.bound_parked()
        return entry.blob

    def sweep(self) -> None:
        """Park what is idle in the shared context while others run there: every query scans every cell.

        What shares most of its cells stays: parking would copy all of it, to free a few. So does everything
        where nothing is parked, until its room is needed.
        """
        if not self._shape.is_parked:
            return
        slots = [entry for entry in self._shared.slots if entry is not None]
        if any(entry.owner is not None for entry in slots):
            for entry in slots:
                if entry.owner is None and self._is_mostly_alone(entry):
                    self._table.evict(entry)
            self._table.bound_parked()

    def _is_mostly_alone(self, entry: KvEntry) -> bool:
        assert entry.slot is not None
        return 2 * self._shared.cells.alone(entry.slot.index) >= len(entry.tokens)

    # The shared context in use

    def lock_shared(self) -> None:
        """A step runs on the shared context in the background: from now on nothing needs a move there."""
        self._table.is_shared_locked = True

    def unlock_shared(self) -> None:
        """The step on the shared context is over."""
        self._table.is_shared_locked = False

    def waits_for_shared_context(
        self,
        salt: str,
        tokens: Tokens[int],
        chain: Digests,
        room: int,
        limit: int,
        *,
        pictures: Pictures = (),
    ) -> bool:
        """Whether a sequence waits for the shared context: it must live there, or much of it is there."""
        if not self._table.is_shared_locked:
            return False
        if not self._table.fits_private(room):
            return True
        best = self._catalogue.match(salt, tokens, chain, limit, pictures=pictures)
        other = self._catalogue.match(
            salt, tokens, chain, limit, is_usable=self._is_outside, pictures=pictures
        )
        return best is not None and best[1] >= (other[1] if other is not None else 0) + SHARE_FROM

    def is_stuck(self, sequence: SequenceId, count: int) -> bool:
        """Whether a running sequence can grow by `count` only once the shared context is free."""
        entry = self._owned[sequence]
        assert entry.slot is not None
        need = len(entry.tokens) + count
        is_locked = self._table.is_shared_locked
        if not is_locked or need <= self._contexts[entry.slot.kv_context].shape.cells:
            return False
        return not any(
            need <= context.shape.cells and any(each is None or each.owner is None for each in context.slots)
            for number, context in self._table.private_contexts()
            if number > entry.slot.kv_context
        )

    # Matching

    def _at_grain(self, source: KvEntry, length: int, grain: int) -> tuple[KvEntry, int] | None:
        """What of a match ends at a multiple of the grain."""
        whole = length - length % grain
        is_possible = whole > 0 and (self._shape.can_trim or whole == len(source.tokens))
        return (source, whole) if is_possible else None

    def _reuse(self, source: KvEntry, length: int, room: int, *, is_private: bool) -> KvEntry | None:
        """An entry that holds the first `length` tokens of the source: itself, when idle, or a copy."""
        table = self._table
        is_in_place = self._may_live(source.slot, is_private=is_private)
        if is_in_place and self._can_take_over(source, length, room):
            table.trim(source, length)
            return source
        if length < BLOCK:
            return None
        slot = table.find_slot(room, source, length, is_private=is_private)
        if slot is not None and not table.can_carry(source, slot):
            return None
        if slot is not None:
            entry = table.new_entry(source.salt, source.tokens[:length], slot)
            table.fill(entry, source, length)
            return entry
        if is_in_place and source.owner is None and table.fits(source, room):
            table.trim(source, length)
            return source
        return None

    def _can_take_over(self, entry: KvEntry, length: int, room: int) -> bool:
        """An idle entry is taken over when most of it is wanted; else its tail is kept for its next turn."""
        return entry.owner is None and 2 * length >= len(entry.tokens) and self._table.fits(entry, room)

    def _is_usable(self, entry: KvEntry, *, is_private: bool) -> bool:
        """Whether an entry can be continued by a sequence that will live here, or be carried to it."""
        if self._table.is_shared_locked and not self._is_outside(entry):
            return False
        if self._shape.can_move:
            return True
        return self._table.is_exact(entry.slot) == is_private

    def _is_outside(self, entry: KvEntry) -> bool:
        """Whether an entry can be had without touching the shared context."""
        return entry.slot is None or entry.slot.kv_context != self.shared_context

    def _may_live(self, slot: Slot | None, *, is_private: bool) -> bool:
        """Whether a sequence that must, or need not, be private may go on where its source lies."""
        if slot is None or slot.kv_context == self.shared_context:
            return not is_private
        return is_private or not self._table.is_exact(slot)
