"""Counts the cells of the shared context that are in use, when slots share prefixes.

Law: a cell is counted once however many slots see it, and is free when the last of them lets go. The slots
form a forest of segments; a slot holds one reference on each segment from its leaf up to its root.
"""


class _Segment:
    __slots__ = ("length", "parent", "references", "runs")

    def __init__(self, parent: "_Segment | None", length: int) -> None:
        self.parent = parent
        self.length = length
        self.references = 1
        self.runs = 1


class SharedCells:
    """Counts the cells behind the slots of a shared context."""

    def __init__(self) -> None:
        self._leaves: dict[int, _Segment | None] = {}
        self._latest: int | None = None
        self.used = 0

    def length(self, slot: int) -> int:
        """How many positions a slot sees."""
        total, segment = 0, self._leaves.get(slot)
        while segment is not None:
            total += segment.length
            segment = segment.parent
        return total

    def alone(self, slot: int) -> int:
        """How many of these no other slot sees."""
        total, segment = 0, self._leaves.get(slot)
        while segment is not None and segment.references == 1:
            total += segment.length
            segment = segment.parent
        return total

    def runs(self, slot: int) -> int:
        """In how many pieces they lie, about: who grows beside others has every cell elsewhere."""
        total, segment = 0, self._leaves.get(slot)
        while segment is not None:
            total += min(segment.runs, segment.length)
            segment = segment.parent
        return total

    def extend(self, slot: int, count: int) -> None:
        """Give a slot `count` new cells of its own."""
        if count == 0:
            return
        leaf = self._leaves.get(slot)
        is_next = self._latest == slot
        self._latest = slot
        self.used += count
        if leaf is not None and leaf.references == 1:
            leaf.length += count
            leaf.runs += not is_next
        else:
            self._leaves[slot] = _Segment(leaf, count)

    def share(self, source: int, target: int, length: int) -> None:
        """Let an empty slot see the first `length` cells of another."""
        assert self._leaves.get(target) is None
        segment = self._leaves.get(source)
        beyond = self.length(source) - length
        while segment is not None and beyond >= segment.length:
            beyond -= segment.length
            segment = segment.parent
        if segment is not None and beyond > 0:
            segment = _split(segment, segment.length - beyond)
        self._leaves[target] = segment
        while segment is not None:
            segment.references += 1
            segment = segment.parent

    def trim(self, slot: int, length: int) -> None:
        """Let a slot forget what lies beyond `length`."""
        segment = self._leaves.get(slot)
        beyond = self.length(slot) - length
        while segment is not None and beyond > 0:
            if beyond < segment.length:
                if segment.references == 1:
                    segment.length -= beyond
                    self.used -= beyond
                    break
                _split(segment, segment.length - beyond)
            beyond -= segment.length
            segment.references -= 1
            if segment.references == 0:
                self.used -= segment.length
            segment = segment.parent
        self._leaves[slot] = segment


def _split(segment: _Segment, at: int) -> _Segment:
    """Cut a segment in two and return the first part; the second keeps its identity for those who hold it."""
    head = _Segment(segment.parent, at)
    head.references, head.runs = segment.references, segment.runs
    segment.parent = head
    segment.length -= at
    return head
