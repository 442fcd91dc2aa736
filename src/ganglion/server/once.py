"""What is said of clients' requests in the log, each thing only once."""

import logging
from collections.abc import Iterable

logger = logging.getLogger("ganglion.server")

# What is said holds names that are the clients' to choose: remember enough for every real one, and no more.
_REMEMBERED = 1024
_SHOWN = 160


class Once:
    """Says what is new; `message` has one place for it."""

    def __init__(self, message: str, level: int) -> None:
        self._message = message
        self._level = level
        self._said: set[str] = set()

    def note(self, things: Iterable[str]) -> None:
        """Say those that were not said yet."""
        for thing in things:
            shown = thing[:_SHOWN]
            if shown not in self._said and len(self._said) < _REMEMBERED:
                self._said.add(shown)
                logger.log(self._level, self._message, shown)


def unknown_fields() -> Once:
    """Fields that clients send and nobody knows."""
    return Once("a client sent the unknown field %r", logging.DEBUG)


def left_out() -> Once:
    """What clients ask for and is left out of their requests."""
    return Once("of a request was left out: %s", logging.WARNING)
