"""What was heard of sessions while this process ran: whose each is, and which model was asked for.

Nothing is lost with it: a session that is not in here is asked for at its node.
"""

from dataclasses import dataclass
from typing import Final

from ganglion.server.relay.handles import Place

MAX_KNOWN: Final = 65_536
"""The sessions of sixteen keys that have as many as a node gives each; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Whose session it is, and its model."""

    tenant: str
    model: str


class Register:
    """The sessions that were heard of last."""

    def __init__(self, limit: int = MAX_KNOWN) -> None:
        self._limit = limit
        self._heard: dict[Place, Heard] = {}

    def note(self, place: Place, heard: Heard) -> None:
        """A session, now the one heard of last."""
        self._heard.pop(place, None)
        if len(self._heard) >= self._limit:
            del self._heard[next(iter(self._heard))]
        self._heard[place] = heard

    def of(self, place: Place) -> Heard | None:
        """What is known of a session; None where it is too long ago, or was another process's."""
        return self._heard.get(place)

    def forget(self, place: Place) -> None:
        """A session that is no more."""
        self._heard.pop(place, None)
