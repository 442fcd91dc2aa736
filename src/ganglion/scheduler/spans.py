"""Sets of positions as half-open spans: sorted, apart from each other, none of them empty. Pure."""

from collections.abc import Iterable

_Span = tuple[int, int]
Spans = tuple[_Span, ...]


def merged(ranges: Iterable[tuple[int, int | None]], length: int) -> Spans:
    """The positions below `length` that some ranges cover; None is an open end."""
    found: list[_Span] = []
    for start, end in sorted((start, length if end is None else min(end, length)) for start, end in ranges):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def clipped(spans: Spans, start: int, end: int) -> Spans:
    """What lies from `start` to before `end`."""
    if not spans or start >= end or spans[-1][1] <= start:
        return ()
    return tuple((max(low, start), min(high, end)) for low, high in spans if low < end and high > start)


def without(spans: Spans, start: int, end: int) -> Spans:
    """What lies before `start` or from `end` on."""
    last = spans[-1][1] if spans else 0
    return clipped(spans, 0, start) + clipped(spans, end, last)


def shifted(spans: Spans, by: int) -> Spans:
    """The same spans elsewhere; what would lie before position 0 is left out."""
    moved = ((max(low + by, 0), high + by) for low, high in spans)
    return tuple((low, high) for low, high in moved if low < high)


def first_from(spans: Spans, start: int) -> int | None:
    """The first position at or after `start`, None when there is none."""
    for low, high in spans:
        if high > start:
            return max(low, start)
    return None


def end_of(spans: Spans, start: int, most: int) -> int | None:
    """Where to stop so that at most `most` positions lie between `start` and there; None needs no stop."""
    for low, high in clipped(spans, start, spans[-1][1]) if spans else ():
        if high - low > most:
            return low + most
        most -= high - low
    return None
