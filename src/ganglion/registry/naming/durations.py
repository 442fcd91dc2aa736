"""Durations as people write them: `30s`, `1.5h`, `2w`."""

import re
from typing import Final

_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smhdw])", re.ASCII | re.IGNORECASE)


def parse_duration_s(text: str) -> float | None:
    """The duration in seconds; None where the text is none."""
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _UNITS_S[found[2].lower()]
