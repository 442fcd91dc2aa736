"""Judges whether a worker lives and makes progress, from what it sent between two looks.

Law: any frame is a sign of life, and only news of work is a sign of progress. The worker's reader answers
pings whatever its other threads do, so a pong proves that the process runs and nothing more; a step is proved
by its `Stepped`, a question by its answer. Time counts from look to look, and only so much of it at once: a
server that was itself stopped or blocked does not blame its worker for it.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Seconds, and the pauses between lives."""

    hang_s: float = 30.0
    """With work and without a step for this long, a worker hangs; slow machines get more (see `Watchdog`)."""
    silence_s: float = 10.0
    """A worker whose process runs answers pings at once; one that does not for this long is stopped."""
    ping_s: float = 2.0
    load_s: float = 600.0
    stop_s: float = 3.0
    """How long a worker that was told to stop may take to end."""
    backoff_s: tuple[float, ...] = (0.05, 0.25, 1.0, 3.0, 10.0)
    """Pauses before each restart; a worker that dies more often in a row than that is given up."""
    healthy_s: float = 30.0
    """A worker that did its work for this long starts the count of deaths anew."""
    recovery_wait_s: float = 10.0
    """How long a new request waits for a restart before it is told to come back."""


FIRST: Final = 4.0
"""The first step may take this many times as long: it reads the weights from disk, and nobody has measured
yet how fast this machine is."""
PATIENCE: Final = 5.0
"""A step may take this many times as long as the longest one before it, however slow the machine."""
_FADE: Final = 0.98
"""What each look that saw progress leaves of the longest step, so that one slow hour is not held for ever."""


@dataclass(frozen=True, slots=True)
class WorkerVitals:
    """What a worker has sent so far, and what it owes."""

    frames: int = 0
    steps: int = 0
    answers: int = 0
    owes_step: bool = False
    owes_answer: bool = False


class Watchdog:
    """One worker's life; `look` is called at every ping."""

    def __init__(self, limits: WorkerLimits, now_s: float) -> None:
        self._limits = limits
        self._looked_s = now_s
        self._frames = 0
        self._silent_s = 0.0
        self._steps = _Work()
        self._answers = _Work()

    @property
    def troubled_s(self) -> float:
        """How long it has not done what it owes."""
        return max(self._silent_s, self._steps.stalled_s, self._answers.stalled_s)

    def look(self, vitals: WorkerVitals, now_s: float) -> str | None:
        """What is wrong with the worker, in words that follow "it", or None."""
        elapsed_s = min(now_s - self._looked_s, 2 * self._limits.ping_s)
        self._looked_s = now_s
        self._silent_s = 0.0 if vitals.frames != self._frames else self._silent_s + elapsed_s
        self._frames = vitals.frames
        self._steps.look(vitals.steps, elapsed_s, is_due=vitals.owes_step)
        self._answers.look(vitals.answers, elapsed_s, is_due=vitals.owes_answer)
        if self._silent_s > self._limits.silence_s:
            return f"gave no sign of life for {self._limits.silence_s:g} s"
        for work, failure in ((self._steps, "made no step"), (self._answers, "tokenized nothing")):
            limit_s = work.limit_s(self._limits.hang_s)
            if work.stalled_s > limit_s:
                return f"{failure} for {limit_s:g} s"
        return None


class _Work:
    """One kind of work that is done piece by piece."""

    def __init__(self) -> None:
        self._done = 0
        self._was_due = False
        self._longest_s = 0.0
        self.stalled_s = 0.0

    def look(self, done: int, elapsed_s: float, *, is_due: bool) -> None:
        """Take in how many pieces were done, and whether one is due."""
        if done == self._done and is_due and self._was_due:
            self.stalled_s += elapsed_s
            return
        if done != self._done:
            self._longest_s = max(self._longest_s * _FADE, self.stalled_s)
        self._done, self._was_due = done, is_due
        self.stalled_s = 0.0

    def limit_s(self, hang_s: float) -> float:
        """How long the next piece may take."""
        return max(hang_s if self._done else FIRST * hang_s, PATIENCE * self._longest_s)
