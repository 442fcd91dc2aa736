"""How long a worker may take for what, and how often it may die."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Seconds, and the pauses between lives."""

    hang_s: float = 30.0
    """With work and without a step for this long, a worker hangs; slow machines get more (see `vigil.py`)."""
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
