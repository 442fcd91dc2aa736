"""Who is told how far a build or an installation is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reporter:
    """Two ways to tell people something."""

    step: Callable[[str, int, int], None]
    """What is being done, how many steps are done, and of how many; 0 while that is not known."""
    notice: Callable[[str], None]
    """Something that is said once."""
