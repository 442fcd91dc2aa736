"""The one owner of KV: where each token list lives, who shares a prefix, what is evicted.

Law: an entry's `tokens` are exactly the tokens whose KV its place or blob holds, once the moves handed out
so far have been carried out in order. Four verbs change that: attach, park, release, and adopt for KV that
comes from elsewhere. Sharing is part of attach.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from ganglion.scheduler.cells import SharedCells
from ganglion.scheduler.prefix import BLOCK, LEAST, Digests
from ganglion.scheduler.prefix_catalogue import KvEntry, PrefixCatalogue, SequenceId, last_used
from ganglion.scheduler.slots import (
    BlobId,
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

SHARE_FROM = 256
"""A prefix in the shared lane that is at least this long is worth reading once for all who share it."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The lanes, smallest private slots first and the shared lane last, and how much may be parked."""

    lanes: tuple[KvContextShape, ...]
    parked_tokens: int
    can_trim: bool = True
    """False for models with recurrent state, whose KV is all or nothing."""
    run_tokens: int = 0
    """How many tokens are computed while one piece of cells is read: what lies in many pieces is not worth
    parking. Nothing in main memory; each piece is a copy of its own for every layer of a GPU."""
    can_move: bool = True
    """Whether KV can be carried from one lane to another."""


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A prefix that is worth keeping when the pool ends, and the place or blob that holds its KV."""

    salt: str
    tokens: tuple[int, ...]
    source: Slot | BlobId


@dataclass(slots=True)
class _PoolContext:
    shape: KvContextShape
    slots: list[KvEntry | None] = field(default_factory=list)
    cells: SharedCells = field(default_factory=SharedCells)


class KvPool:
    """Decides where KV lives; the runner carries out the moves it hands out."""

    def __init__(self, shape: PoolShape) -> None:
        assert shape.lanes
        assert shape.lanes[-1].is_shared
        self._shape = shape
        self._lanes = [_PoolContext(lane, [None] * lane.slots) for lane in shape.lanes]
        self._catalogue = PrefixCatalogue(can_trim=shape.can_trim)
        self._owned: dict[SequenceId, KvEntry] = {}
        self._promised: dict[SequenceId, int] = {}
        """Cells of the shared lane that running sequences are about to take, several in one step."""
        self._parked_tokens = 0
        self._moves: list[Move] = []
        self._is_shared_locked = False

    # What is where

    @property
    def total_cells(self) -> int:
        """How many tokens all lanes can hold."""
        return sum(lane.shape.total_cells for lane in self._lanes if not lane.shape.is_exact)

    @property
    def used_cells(self) -> int:
        """How many cells of the lanes hold something, running or cached."""
        private = sum(
            len(entry.tokens)
            for lane in self._lanes
            if not lane.shape.is_shared and not lane.shape.is_exact
            for entry in lane.slots
            if entry is not None
        )
        return private + self._shared.cells.used

    @property
    def parked_tokens(self) -> int:
        """How many tokens lie in blobs."""
        return self._parked_tokens

    @property
    def shared_lane(self) -> int:
        """The number of the shared lane, the last one."""
        return len(self._lanes) - 1

    def place(self, sequence: SequenceId) -> Slot:
        """Where a running sequence's KV is."""
        place = self._owned[sequence].place
        assert place is not None
        return place

    def held(self, sequence: SequenceId) -> int:
        """How many tokens of a running sequence have their KV."""
        return len(self._owned[sequence].tokens)

    def take_moves(self) -> tuple[Move, ...]:
        """Hand out what must be carried out, in order, before the next batch runs."""
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    def reusable(self, salt: str, tokens: Tokens[int], chain: Digests, limit: int) -> int:
        """How many leading tokens, of `limit` at most, are cached somewhere."""
        match = self._catalogue.match(salt, tokens, chain, limit)
        return 0 if match is None else match[1]

    def find(self, salt: str, tokens: Tokens[int], chain: Digests) -> tuple[Slot | BlobId, int] | None:
        """Where the longest cached prefix of some tokens lies once all moves are done, and its length."""
        match = self._catalogue.match(salt, tokens, chain, len(tokens))
        if match is None:
            return None
        source = match[0].place if match[0].place is not None else match[0].blob
        assert source is not None
        return source, match[1]

    def hot(self) -> tuple[HotPrefix, ...]:
        """What holds KV once all moves are carried out, most recently used first.

        An entry that begins like a longer one is left out: the longer one stands for both.
        """
        found: list[HotPrefix] = []
        for entry in self._catalogue.hottest():
            source = entry.place if entry.place is not None else entry.blob
            assert source is not None
            if len(entry.tokens) >= BLOCK and not self._catalogue.is_covered(entry, by_longer=True):
                found.append(HotPrefix(entry.salt, tuple(entry.tokens), source))
        return tuple(found)

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
    ) -> int | None:
        """Give a sequence a place with room for `room` tokens; returns how many of its tokens it reuses.

        That is `limit` at most: the rest is run for its logits. With an `exact_grain` it is a multiple of it,
        and the place is private if any private slot is large enough, since cells of others move bits.
        None means that nothing can be evicted to make room, and changes nothing.
        """
        assert sequence not in self._owned
        is_private = exact_grain is not None and self._fits_private(room, is_exact=True)

        def is_usable(entry: KvEntry) -> bool:
            return self._is_usable(entry, is_private=is_private)

        match = self._catalogue.match(salt, tokens, chain, limit, is_usable=is_usable)
        entry = None
        if match is not None and exact_grain is not None:
            match = self._at_grain(*match, exact_grain)
        if match is not None:
            entry = self._reuse(*match, room, is_private=is_private)
        if entry is None:
            place = self._find_place(room, None, 0, is_private=is_private)
            if place is None:
                return None
            entry = self._new_entry(salt, [], place)
        self._own(entry, sequence)
        self._catalogue.index(entry, chain)
        self._bound_parked()
        return len(entry.tokens)

    def reserve(self, sequence: SequenceId, count: int) -> bool:
        """Promise a running sequence that it can grow by `count`, moving or evicting what is idle."""
        entry = self._owned[sequence]
        assert entry.place is not None
        self._promised.pop(sequence, None)
        lane = self._lanes[entry.place.lane]
        need = len(entry.tokens) + count
        if lane.shape.is_shared:
            has_room = self._make_room(count, keep=entry)
        else:
            has_room = need <= lane.shape.cells or self._migrate(entry, need)
        if has_room and entry.place.lane == self.shared_lane:
            self._promised[sequence] = count
        self._bound_parked()
        return has_room

    def extend(self, sequence: SequenceId, tokens: Tokens[int], chain: Digests | None = None) -> None:
        """Record that a batch computed KV for more tokens of a sequence, after `reserve`."""
        entry = self._owned[sequence]
        assert entry.place is not None
        self._promised.pop(sequence, None)
        entry.tokens.extend(tokens)
        if entry.place.lane == self.shared_lane:
            self._shared.cells.extend(entry.place.slot, len(tokens))
        if chain is not None:
            self._catalogue.index(entry, chain)

    def release(self, sequence: SequenceId, *, is_sound: bool = True) -> None:
        """The sequence ended; what it computed, if it is sound, stays cached until the place is needed."""
        entry = self._owned.pop(sequence)
        self._promised.pop(sequence, None)
        entry.owner = None
        self._catalogue.touch(entry)
        if not is_sound or len(entry.tokens) < LEAST:
            self._forget(entry)
            return
        self._catalogue.index(entry)

    def park(self, sequence: SequenceId) -> None:
        """Take a running sequence's place away, keeping its KV in a blob when there is room for it."""
        entry = self._owned[sequence]
        self.release(sequence)
        if entry.place is not None:
            self._evict(entry)
        self._bound_parked()

    def adopt(self, salt: str, tokens: Tokens[int]) -> BlobId:
        """Take in KV from elsewhere as a parked entry; the runner must hold the blob from now on."""
        assert len(tokens) <= self._shape.parked_tokens
        entry = self._catalogue.add(salt, list(tokens))
        entry.blob = entry.key
        self._catalogue.touch(entry)
        self._catalogue.index(entry)
        self._parked_tokens += len(entry.tokens)
        self._bound_parked()
        return entry.blob

    def sweep(self) -> None:
        """Park what is idle in the shared lane while others run there: every query scans every cell.

        What shares most of its cells stays: parking would copy all of it, to free a few.
        """
        slots = [entry for entry in self._shared.slots if entry is not None]
        if any(entry.owner is not None for entry in slots):
            for entry in slots:
                if entry.owner is None and self._is_mostly_alone(entry):
                    self._evict(entry)
            self._bound_parked()

    def _is_mostly_alone(self, entry: KvEntry) -> bool:
        assert entry.place is not None
        return 2 * self._shared.cells.alone(entry.place.slot) >= len(entry.tokens)

    # The shared lane in use

    def lock_shared(self) -> None:
        """A step runs on the shared lane in the background: from now on nothing needs a move there."""
        self._is_shared_locked = True

    def unlock_shared(self) -> None:
        """The step on the shared lane is over."""
        self._is_shared_locked = False

    def needs_locked_lane(
        self, salt: str, tokens: Tokens[int], chain: Digests, room: int, limit: int
    ) -> bool:
        """Whether a sequence waits for the shared lane: it must live there, or much of it is there."""
        if not self._is_shared_locked:
            return False
        if not self._fits_private(room):
            return True
        best = self._catalogue.match(salt, tokens, chain, limit)
        other = self._catalogue.match(salt, tokens, chain, limit, is_usable=self._is_outside)
        return best is not None and best[1] >= (other[1] if other is not None else 0) + SHARE_FROM

    def is_stuck(self, sequence: SequenceId, count: int) -> bool:
        """Whether a running sequence can grow by `count` only once the shared lane is free."""
        entry = self._owned[sequence]
        assert entry.place is not None
        need = len(entry.tokens) + count
        if not self._is_shared_locked or need <= self._lanes[entry.place.lane].shape.cells:
            return False
        return not any(
            need <= lane.shape.cells and any(each is None or each.owner is None for each in lane.slots)
            for number, lane in self._private_lanes()
            if number > entry.place.lane
        )

    # Matching

    def _at_grain(self, source: KvEntry, length: int, grain: int) -> tuple[KvEntry, int] | None:
        """What of a match ends at a multiple of the grain."""
        whole = length - length % grain
        is_possible = whole > 0 and (self._shape.can_trim or whole == len(source.tokens))
        return (source, whole) if is_possible else None

    def _reuse(self, source: KvEntry, length: int, room: int, *, is_private: bool) -> KvEntry | None:
        """An entry that holds the first `length` tokens of the source: itself, when idle, or a copy."""
        is_in_place = self._may_live(source.place, is_private=is_private)
        if is_in_place and self._can_adopt(source, length, room):
            self._trim(source, length)
            return source
        if length < BLOCK:
            return None
        place = self._find_place(room, source, length, is_private=is_private)
        if place is not None and not self._can_carry(source, place):
            return None
        if place is not None:
            entry = self._new_entry(source.salt, source.tokens[:length], place)
            self._fill(entry, source, length)
            return entry
        if is_in_place and source.owner is None and self._fits(source, room):
            self._trim(source, length)
            return source
        return None

    def _can_carry(self, source: KvEntry, place: Slot) -> bool:
        """Whether a part of the source can be brought here: blobs are read whole and cut afterwards.

        What the target cannot hold whole passes through a spare slot of the shared lane.
        """
        last = self.shared_lane
        if source.place is not None and source.place.lane == last:
            return True
        shape = self._lanes[place.lane].shape
        if not shape.is_shared and len(source.tokens) <= shape.cells:
            return True
        if self._is_shared_locked:
            return False
        return self._shared.cells.used + len(source.tokens) <= self._shared.shape.cells

    def _can_adopt(self, entry: KvEntry, length: int, room: int) -> bool:
        """An idle entry is taken over when most of it is wanted; else its tail is kept for its next turn."""
        return entry.owner is None and 2 * length >= len(entry.tokens) and self._fits(entry, room)

    def _is_usable(self, entry: KvEntry, *, is_private: bool) -> bool:
        """Whether an entry can be continued by a sequence that will live here, or be carried to it."""
        if self._is_shared_locked and not self._is_outside(entry):
            return False
        if self._shape.can_move:
            return True
        return self._is_exact(entry.place) == is_private

    def _is_outside(self, entry: KvEntry) -> bool:
        """Whether an entry can be had without touching the shared lane."""
        return entry.place is None or entry.place.lane != self.shared_lane

    def _is_exact(self, place: Slot | None) -> bool:
        return place is not None and self._lanes[place.lane].shape.is_exact

    def _may_live(self, place: Slot | None, *, is_private: bool) -> bool:
        """Whether a sequence that must, or need not, be private may go on where its source lies."""
        if place is None or place.lane == self.shared_lane:
            return not is_private
        return is_private or not self._is_exact(place)

    def _private_lanes(self, *, is_exact: bool = False) -> list[tuple[int, _PoolContext]]:
        """The lanes of private slots and their numbers, smallest slots first."""
        lanes = enumerate(self._lanes[:-1])
        return [(number, lane) for number, lane in lanes if is_exact or not lane.shape.is_exact]

    def _fits_private(self, room: int, *, is_exact: bool = False) -> bool:
        return any(room <= lane.shape.cells for _, lane in self._private_lanes(is_exact=is_exact))

    def _fits(self, entry: KvEntry, room: int) -> bool:
        if entry.place is None:
            return False
        shape = self._lanes[entry.place.lane].shape
        if not shape.is_shared:
            return room <= shape.cells
        return self._can_make_room(room - len(entry.tokens), keep=entry)

    # Places

    @property
    def _shared(self) -> _PoolContext:
        return self._lanes[-1]

    def _find_place(
        self, room: int, source: KvEntry | None, length: int, *, is_private: bool = False
    ) -> Slot | None:
        """A slot for `room` tokens: beside its source when they share much, else the smallest that fits."""
        last = self.shared_lane
        if (
            not is_private
            and source is not None
            and source.place is not None
            and source.place.lane == last
            and length >= SHARE_FROM
        ):
            place = self._shared_place(room - length, keep=source)
            if place is not None:
                return place
        for number, lane in self._private_lanes(is_exact=is_private):
            if room <= lane.shape.cells:
                place = self._private_place(number, keep=source)
                if place is not None:
                    return place
        return None if is_private else self._shared_place(room, keep=source)

    def _private_place(self, number: int, keep: KvEntry | None) -> Slot | None:
        slots = self._lanes[number].slots
        for slot, entry in enumerate(slots):
            if entry is None:
                return Slot(number, slot)
        idle = [entry for entry in slots if entry is not None and entry.owner is None and entry is not keep]
        if not idle:
            return None
        oldest = min(idle, key=last_used)
        place = oldest.place
        self._evict(oldest)
        return place

    def _shared_place(self, room: int, keep: KvEntry | None) -> Slot | None:
        if self._is_shared_locked or not self._can_make_room(room, keep=keep):
            return None
        slots = self._shared.slots
        number = self.shared_lane
        slot = next((slot for slot, entry in enumerate(slots) if entry is None), None)
        if slot is None:
            idle = [
                entry for entry in slots if entry is not None and entry.owner is None and entry is not keep
            ]
            if not idle:
                return None
            oldest = min(idle, key=last_used)
            assert oldest.place is not None
            slot = oldest.place.slot
            self._evict(oldest)
        return Slot(number, slot) if self._make_room(room, keep=keep) else None

    def _can_make_room(self, count: int, keep: KvEntry | None) -> bool:
        """Whether evicting idle entries of the shared lane would free `count` cells."""
        count += sum(self._promised.values())
        if self._shared.cells.used + count <= self._shared.shape.cells:
            return True
        # Cells that an idle entry shares with a running one stay; owned lengths bound what must stay.
        kept = sum(
            len(entry.tokens)
            for entry in self._shared.slots
            if entry is not None and (entry.owner is not None or entry is keep)
        )
        return min(kept, self._shared.cells.used) + count <= self._shared.shape.cells

    def _make_room(self, count: int, keep: KvEntry | None) -> bool:
        count += sum(self._promised.values())
        while self._shared.cells.used + count > self._shared.shape.cells:
            idle = [
                entry
                for entry in self._shared.slots
                if entry is not None and entry.owner is None and entry is not keep
            ]
            if not idle:
                return False
            self._evict(min(idle, key=last_used))
        return True

    def _migrate(self, entry: KvEntry, need: int) -> bool:
        """Move a sequence that outgrew its private slot to a roomier one."""
        old = entry.place
        assert old is not None
        last = self.shared_lane
        place: Slot | None = None
        for number in range(old.lane + 1, last):
            if place is None and need <= self._lanes[number].shape.cells:
                place = self._private_place(number, keep=entry)
        place = place or self._shared_place(need, keep=entry)
        if place is None:
            return False
        self._moves.append(Copy(old, place, len(entry.tokens)))
        self._moves.append(Trim(old, 0))
        self._lanes[old.lane].slots[old.slot] = None
        self._lanes[place.lane].slots[place.slot] = entry
        entry.place = place
        if place.lane == last:
            self._shared.cells.extend(place.slot, len(entry.tokens))
        return True

    # Entries

    def _new_entry(self, salt: str, tokens: list[int], place: Slot) -> KvEntry:
        entry = self._catalogue.add(salt, tokens, place)
        self._lanes[place.lane].slots[place.slot] = entry
        return entry

    def _fill(self, entry: KvEntry, source: KvEntry, length: int) -> None:
        """Bring the first `length` tokens of the source into a new entry's place."""
        assert entry.place is not None
        self._catalogue.touch(source)
        last = self.shared_lane
        if source.place is None:
            assert source.blob is not None
            self._moves.append(Restore(source.blob, entry.place, length))
        elif source.place.lane == entry.place.lane == last:
            self._moves.append(Share(source.place, entry.place, length))
            self._shared.cells.share(source.place.slot, entry.place.slot, length)
            return
        else:
            self._moves.append(Copy(source.place, entry.place, length))
        if entry.place.lane == last:
            self._shared.cells.extend(entry.place.slot, length)

    def _own(self, entry: KvEntry, sequence: SequenceId) -> None:
        entry.owner = sequence
        self._catalogue.touch(entry)
        self._owned[sequence] = entry

    def _trim(self, entry: KvEntry, length: int) -> None:
        if length == len(entry.tokens):
            return
        assert entry.place is not None
        self._catalogue.cut(entry, length)
        self._moves.append(Trim(entry.place, length))
        if entry.place.lane == self.shared_lane:
            self._shared.cells.trim(entry.place.slot, length)

    def _evict(self, entry: KvEntry) -> None:
        """Take an idle entry's place, keeping it in a blob unless another entry holds all of it anyway."""
        place = entry.place
        assert place is not None
        assert entry.owner is None
        if self._catalogue.is_covered(entry) or not self._is_worth_parking(entry, place):
            self._forget(entry)
            return
        entry.blob = entry.key
        self._moves.append(Save(place, entry.blob))
        self._leave(entry)
        self._parked_tokens += len(entry.tokens)

    def _is_worth_parking(self, entry: KvEntry, place: Slot) -> bool:
        if len(entry.tokens) < BLOCK or (not self._shape.can_move and self._is_exact(place)):
            return False
        is_shared = place.lane == self.shared_lane
        cost_tokens = self._shape.run_tokens * self._shared.cells.runs(place.slot) if is_shared else 0
        return cost_tokens <= len(entry.tokens) <= self._shape.parked_tokens

    def _bound_parked(self) -> None:
        while self._parked_tokens > self._shape.parked_tokens:
            self._forget(self._catalogue.oldest_parked())

    def _leave(self, entry: KvEntry) -> None:
        place = entry.place
        assert place is not None
        self._moves.append(Trim(place, 0))
        self._lanes[place.lane].slots[place.slot] = None
        if place.lane == self.shared_lane:
            self._shared.cells.trim(place.slot, 0)
        entry.place = None

    def _forget(self, entry: KvEntry) -> None:
        if entry.place is not None:
            self._leave(entry)
        if entry.blob is not None:
            self._moves.append(Discard(entry.blob))
            self._parked_tokens -= len(entry.tokens)
        self._catalogue.remove(entry.key)
