"""Decides which requests may be in a worker together: all that nobody suspects, or one suspect alone.

Law: whoever entered leaves exactly once, and not before the worker has let go of the work: also of a client's
that is long gone, since it may still bring the worker down.
Law: isolation costs the suspect. With a second worker suspects run there one after another, and nobody else
waits for them. Without one, a suspect is let in when nobody else is inside, and whoever comes then waits
`ALONE_S` at most: after that the suspect is interrupted, and stays one.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import Final, Literal, assert_never

from ganglion.core.errors import Overloaded, RequestQuarantined

# Law: whoever was in a worker that died is a suspect; a suspect in whose lone company another worker dies
# is quarantined; one that completes alone is cleared. Both lists are bounded, and the oldest entry is
# forgotten.

_Verdict = Literal["clear", "suspect", "quarantined"]

_MOST: Final = 1024
"""Entries of either list; many times what runs at once, so that no suspect is forgotten before its retry."""
_SUSPICION_S: Final = 600.0
"""A client that has not come back by then does not retry; and after a death by the system's own hand (out of
memory, an operator) this is how long the innocent keep running one by one."""


@dataclass(frozen=True, slots=True)
class PromptKey:
    """What makes two requests the same: whose they are, and the digest of what they ask."""

    salt: str
    digest: bytes


def key_of_tokens(salt: str, tokens: Iterable[int]) -> PromptKey:
    """A prompt's key; how its answer is sampled is no part of it."""
    return PromptKey(salt, blake2b(array("q", tokens).tobytes(), digest_size=16, person=b"tokens").digest())


def key_of_text(text: str) -> PromptKey:
    """The key of a text that is only tokenized, which is nobody's in particular."""
    return PromptKey("", blake2b(text.encode(), digest_size=16, person=b"text").digest())


class Suspects:
    """Judges requests by what happened to the workers they ran in."""

    def __init__(self, most: int = _MOST, suspicion_s: float = _SUSPICION_S) -> None:
        self._most = most
        self._suspicion_s = suspicion_s
        self._until_s: dict[PromptKey, float] = {}
        self._quarantined: dict[PromptKey, None] = {}

    def judge(self, key: PromptKey, now_s: float) -> _Verdict:
        """How a request is to be run."""
        if key in self._quarantined:
            return "quarantined"
        return "suspect" if self._until_s.get(key, now_s) > now_s else "clear"

    def blame(self, key: PromptKey, now_s: float, *, was_alone: bool) -> None:
        """A worker died with this request in it; alone means that it was run so because it was a suspect."""
        self._until_s.pop(key, None)
        if was_alone:
            self._quarantined.pop(key, None)
            self._quarantined[key] = None
            _forget_oldest(self._quarantined, self._most)
        else:
            self._until_s[key] = now_s + self._suspicion_s
            _forget_oldest(self._until_s, self._most)

    def clear(self, key: PromptKey) -> None:
        """The request ran alone to its end."""
        self._until_s.pop(key, None)


def _forget_oldest(entries: dict[PromptKey, float] | dict[PromptKey, None], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]


Outcome = Literal["completed", "abandoned", "crashed"]
"""It came to its own good end, it was given up or failed by itself, or the worker died with it inside."""
OnReleased = Callable[[Outcome], None]

_Isolation = Literal["beside", "apart", "alone"]
"""Beside others, alone in the second worker, or alone in the only one."""

_SUSPECTS_SHARE: Final = 4
"""This part of the queue may be taken by suspects that wait, so that they do not fill the model's queue."""
ALONE_S: Final = 1.0
"""How long others wait for a suspect that is alone in the only worker."""

_QUIET_S: Final = 0.02
"""How long nobody else must have come before a suspect is let in alone: whoever asks again at once would
wait for it."""


class WorkerAdmission:
    """One request's admission to a worker, or its wait for one."""

    def __init__(self, key: PromptKey) -> None:
        self.key = key
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stay: _Isolation = "beside"
        self._is_due = False
        self._interrupt: Callable[[], None] | None = None

    @property
    def is_alone(self) -> bool:
        """Whether nothing else is in its worker."""
        return self.stay != "beside"

    def interruptible(self, interrupt: Callable[[], None]) -> None:
        """Register how to end the request; called at once when others already wait for it."""
        self._interrupt = interrupt
        if self._is_due:
            interrupt()

    def interrupt(self) -> None:
        """End the request as soon as possible."""
        self._is_due = True
        if self._interrupt is not None:
            self._interrupt()


class IsolationQueue:
    """Lets requests in, in the order they came, and suspects by turns between those who sent them.

    `has_second` says whether there is a second worker for suspects, or room for one.
    """

    def __init__(
        self,
        limit: int,
        suspects: Suspects,
        clock: Callable[[], float] = monotonic,
        *,
        has_second: Callable[[], bool] = lambda: False,
        alone_s: float = ALONE_S,
    ) -> None:
        self._limit = limit
        self._suspects = suspects
        self._clock = clock
        self._has_second = has_second
        self._alone_s = alone_s
        self._inside: set[WorkerAdmission] = set()
        self._queue: deque[WorkerAdmission] = deque()
        self._apart: WorkerAdmission | None = None
        self._alone: WorkerAdmission | None = None
        self._alone_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[str, int] = {}
        """How many suspects of each salt were let in since suspects began to wait."""

    @property
    def inside(self) -> int:
        """How many requests are in a worker."""
        return len(self._inside)

    @property
    def queued(self) -> int:
        """How many requests wait to be let in."""
        return len(self._queue)

    async def enter(self, key: PromptKey) -> WorkerAdmission:
        """Wait to be let in; raises RequestQuarantined, or Overloaded when too many are here."""
        verdict = self._suspects.judge(key, self._clock())
        if verdict == "quarantined":
            raise _quarantined()
        if verdict == "suspect" and self.queued >= self._limit // _SUSPECTS_SHARE:
            raise Overloaded(
                f"{self.queued} requests that were in a worker which died wait for their turn alone.",
                extras={"queue_depth": self.queued},
            )
        if self.inside + self.queued >= self._limit:
            raise Overloaded(
                f"{self.inside} requests run and {self.queued} wait, which is as many as this model takes.",
                extras={"queue_depth": self.queued},
            )
        admission = WorkerAdmission(key)
        self._queue.append(admission)
        self._admit()
        try:
            await admission.turn
        except BaseException:
            self.leave(admission, "abandoned")
            raise
        return admission

    def leave(self, admission: WorkerAdmission, outcome: Outcome) -> None:
        """Give up an admission, and blame or clear the request by how it ended."""
        pause_s = 0.0
        if admission in self._inside:
            pause_s = 0.0 if admission.is_alone or outcome == "crashed" else _QUIET_S
            self._vacate(admission)
            if outcome == "crashed":
                self._suspects.blame(admission.key, self._clock(), was_alone=admission.is_alone)
            elif outcome == "completed" and admission.is_alone:
                self._suspects.clear(admission.key)
        elif admission in self._queue:
            self._queue.remove(admission)
        if self._queue:
            # Later, so that all whom one crash concerns are blamed before anybody is judged.
            asyncio.get_running_loop().call_later(pause_s, self._admit)

    def _vacate(self, admission: WorkerAdmission) -> None:
        self._inside.remove(admission)
        if admission is self._apart:
            self._apart = None
        if admission is self._alone:
            self._alone = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _admit(self) -> None:
        """Let in everybody who may be, judging all who wait anew: a crash may have made suspects of them."""
        suspected: list[WorkerAdmission] = []
        for admission in list(self._queue):
            if admission.turn.done():
                self._queue.remove(admission)  # cancelled, and about to leave
                continue
            verdict = self._suspects.judge(admission.key, self._clock())
            match verdict:
                case "quarantined":
                    self._queue.remove(admission)
                    admission.turn.set_exception(_quarantined())
                case "suspect":
                    suspected.append(admission)
                case "clear" if self._alone is None:
                    self._let_in(admission, "beside")
                case "clear":
                    self._start_deadline()
                case _:
                    assert_never(verdict)
        if not suspected:
            self._turns.clear()
        elif self._has_second():
            if self._apart is None:
                self._let_in(self._next(suspected), "apart")
        elif self._inside <= {self._apart}:
            self._let_in(self._next(suspected), "alone")

    def _next(self, suspected: list[WorkerAdmission]) -> WorkerAdmission:
        """The first of whoever had the fewest turns: nobody's many suspects keep another's one waiting."""
        chosen = min(suspected, key=lambda admission: self._turns.get(admission.key.salt, 0))
        self._turns[chosen.key.salt] = self._turns.get(chosen.key.salt, 0) + 1
        return chosen

    def _let_in(self, admission: WorkerAdmission, stay: _Isolation) -> None:
        self._queue.remove(admission)
        admission.stay = stay
        self._inside.add(admission)
        if stay == "apart":
            self._apart = admission
        if stay == "alone":
            self._alone = admission
            self._alone_until_s = asyncio.get_running_loop().time() + self._alone_s
        admission.turn.set_result(None)

    def _start_deadline(self) -> None:
        """Somebody whom nobody suspects waits for the one that is alone: not for long."""
        if self._timer is None and self._alone is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._alone_until_s, self._alone.interrupt)


def _quarantined() -> RequestQuarantined:
    return RequestQuarantined(
        "This prompt was running when the engine died, and again, alone, when it died once more; "
        "it is not run any more.",
        hint="Change the prompt. What is quarantined is forgotten when the model is reloaded.",
    )
