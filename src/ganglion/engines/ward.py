"""Who may be in a worker together: everybody, or one suspect alone.

Law: whoever entered leaves exactly once, and not before the worker has let go of the work: also of a client's
that is long gone, since it may still bring the worker down.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Literal

from ganglion.core.errors import Overloaded, RequestQuarantined
from ganglion.engines.suspects import Key, Suspects

Outcome = Literal["completed", "abandoned", "crashed"]
"""It came to its own good end, it was given up or failed by itself, or the worker died with it inside."""
WhenGone = Callable[[Outcome], None]


class Place:
    """One request's stay, or its wait for one."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_alone = False


class Ward:
    """Lets requests in, in the order they came; a suspect waits until it is empty, and all others for it."""

    def __init__(self, limit: int, suspects: Suspects, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._suspects = suspects
        self._clock = clock
        self._inside: set[Place] = set()
        self._queue: deque[Place] = deque()

    @property
    def inside(self) -> int:
        """How many are in."""
        return len(self._inside)

    @property
    def queued(self) -> int:
        """How many wait to be let in."""
        return len(self._queue)

    async def enter(self, key: Key) -> Place:
        """Wait to be let in; raises RequestQuarantined, or Overloaded when too many are here."""
        if self._suspects.judge(key, self._clock()) == "quarantined":
            raise _quarantined()
        if self.inside + self.queued >= self._limit:
            raise Overloaded(
                f"{self.inside} requests run and {self.queued} wait, which is as many as this model takes.",
                extras={"queue_depth": self.queued},
            )
        place = Place(key)
        self._queue.append(place)
        self._admit()
        try:
            await place.turn
        except BaseException:
            self.leave(place, "abandoned")
            raise
        return place

    def leave(self, place: Place, outcome: Outcome) -> None:
        """Give the place up and draw the conclusion."""
        if place in self._inside:
            self._inside.remove(place)
            if outcome == "crashed":
                self._suspects.blame(place.key, self._clock(), was_alone=place.is_alone)
            elif outcome == "completed" and place.is_alone:
                self._suspects.clear(place.key)
        elif place in self._queue:
            self._queue.remove(place)
        if self._queue:
            # Later, so that all whom one crash concerns are blamed before anybody is judged.
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        while self._queue:
            place = self._queue[0]
            verdict = self._suspects.judge(place.key, self._clock())
            if verdict != "quarantined" and self._must_wait(is_suspect=verdict == "suspect"):
                return
            self._queue.popleft()
            if place.turn.done():
                continue  # cancelled, and about to leave
            if verdict == "quarantined":
                place.turn.set_exception(_quarantined())
                continue
            place.is_alone = verdict == "suspect"
            self._inside.add(place)
            place.turn.set_result(None)

    def _must_wait(self, *, is_suspect: bool) -> bool:
        return bool(self._inside) and (is_suspect or any(each.is_alone for each in self._inside))


def _quarantined() -> RequestQuarantined:
    return RequestQuarantined(
        "This prompt was running when the engine died, and again, alone, when it died once more; "
        "it is not run any more.",
        hint="Change the prompt. What is quarantined is forgotten when the model is loaded anew.",
    )
