"""Tells a request that computes NaN from a device that does.

Law: NaN fails its own request. It is the device's fault, and the end of the worker, when every row of a batch
is NaN, or when several different prompts in a row were, with no good row between them. A lone row counts like
any other, but a prompt counts once however often it is asked again: it may well be its own fault.
"""

from collections.abc import Iterable
from typing import Final

from ganglion.core.errors import EngineFailed

DIFFERENT_PROMPTS: Final = 3


class Sanity:
    """What the last rows were like."""

    def __init__(self) -> None:
        self._prompts: set[int] = set()
        """Hashes of the prompts that were NaN since the last good row."""

    def check(self, rows: Iterable[tuple[int, bool]]) -> None:
        """Take in a step's rows: each one's prompt, and whether it was numbers; raises when none ever is."""
        seen = list(rows)
        if any(is_number for _, is_number in seen):
            self._prompts.clear()
            return
        self._prompts.update(prompt for prompt, _ in seen)
        if len(seen) > 1:
            raise EngineFailed(f"All {len(seen)} sequences of a batch computed NaN.")
        if len(self._prompts) >= DIFFERENT_PROMPTS:
            raise EngineFailed(f"{len(self._prompts)} different prompts in a row computed NaN.")
