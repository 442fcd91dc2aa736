"""How much room loaded models leave, and which of them makes room for another. Pure."""

from collections.abc import Sequence

from ganglion.core.errors import InsufficientMemory, InsufficientVideoMemory
from ganglion.registry.loading.resident import Resident


def available_bytes(loaded: Sequence[Resident], free_bytes: int, limit_bytes: int | None) -> int:
    """What is free, less what loaded models were promised and have not touched yet."""
    states = [state for resident in loaded for state in resident.states()]
    room = free_bytes - sum(max(state.memory_mb - state.resident_mb, 0) << 20 for state in states)
    if limit_bytes is not None:
        room = min(room, limit_bytes - sum(state.memory_mb << 20 for state in states))
    return max(room, 0)


def evictable(loaded: Sequence[Resident], newcomer: Resident) -> list[Resident]:
    """Those that may go at all: not pinned, and not more urgent."""
    return [
        each
        for each in loaded
        if not each.is_pinned and each.candidate.priority >= newcomer.candidate.priority
    ]


def victim(candidates: Sequence[Resident]) -> Resident | None:
    """Who goes: an idle one before a busy one, then the least urgent, then the one left alone for longest."""
    return min(
        candidates,
        key=lambda each: (not each.is_idle, -each.candidate.priority, each.idle_since_s),
        default=None,
    )


def cannot_fit(candidates: Sequence[Resident], error: InsufficientMemory) -> bool:
    """Whether it would not fit if all of them went; of video memory only the engine knows."""
    if isinstance(error, InsufficientVideoMemory):
        return False
    states = [state for each in candidates for state in each.states()]
    return error.required_mb > error.free_mb + sum(state.memory_mb for state in states)
