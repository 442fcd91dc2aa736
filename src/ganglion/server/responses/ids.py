"""Ids of responses and of their items.

Law: an item's id holds its response's, so that an item that a client refers to is found by its id alone.
"""

import itertools
import re
import uuid

_ITEM = re.compile(r"[a-z]{2,8}_([0-9a-f]{32})[0-9a-f]{4,8}")


def new_response_id() -> str:
    """An id that no other response has."""
    return f"resp_{uuid.uuid4().hex}"


def new_id(prefix: str) -> str:
    """An id of something that belongs to no response."""
    return f"{prefix}_{uuid.uuid4().hex}"


class ItemIds:
    """Numbers the items of one response."""

    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix("resp_")
        self._numbers = itertools.count()

    def __call__(self, prefix: str) -> str:
        return f"{prefix}_{self._stem}{next(self._numbers):04x}"


def response_of(item_id: str) -> str | None:
    """The response that an item's id names; None for ids that others made."""
    named = _ITEM.fullmatch(item_id)
    return None if named is None else f"resp_{named[1]}"
