"""Stretches of time and dates as people type them: `90s`, `30d`, `2027-01-31`."""

import re
from datetime import UTC, datetime
from typing import Final

from ganglion.core.errors import InvalidValue

_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_MAX_S: Final = 100 * 365 * 86400.0


def moment_s(text: str, now_s: float, *, is_past: bool, flag: str) -> float:
    """The moment that a text means: a duration from now, before it or after, or the start of a day in UTC."""
    match = _DURATION.fullmatch(text)
    if match is not None:
        away_s = int(match[1]) * _UNITS_S[match[2]]
        if away_s <= _MAX_S:
            return now_s - away_s if is_past else now_s + away_s
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InvalidValue(
            f"{flag} takes a time as 12h, 30d or 2w, or a date as 2027-01-31; found {text[:64]!r}.",
            param=flag.lstrip("-"),
            hint=f"{flag} 30d",
        ) from None


def date_words(moment: float) -> str:
    """A moment as the date and minute it is in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")


def day_words(moment: float) -> str:
    """A moment as the day it is in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")
