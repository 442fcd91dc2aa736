"""Numbers as people read them."""

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.registry.naming.durations import parse_duration_s

_MICROS: Final = 1_000_000
_MAX_UNITS: Final = 10**9


def micros_of(text: str, flag: str) -> int:
    """`12.50` in millionths; raises InvalidValue."""
    try:
        units = Decimal(text)
        micros = units * _MICROS
        if not units.is_finite() or not 0 <= units <= _MAX_UNITS or micros != micros.to_integral_value():
            raise InvalidOperation
    except InvalidOperation:
        raise InvalidValue(
            f"{flag} takes a number from 0 to {_MAX_UNITS} with at most six decimals; found {text[:64]!r}.",
            param=flag.lstrip("-"),
            hint=f"{flag} 12.50",
        ) from None
    return int(micros)


def units_words(micros: int) -> str:
    """Millionths as units: two decimals, or as many as it takes."""
    whole, rest = divmod(micros, _MICROS)
    decimals = f"{rest:06d}".rstrip("0")
    return f"{whole}.{decimals:0<2}"


_MAX_S: Final = 100 * 365 * 86400.0


def moment_s(text: str, now_s: float, *, is_past: bool, flag: str) -> float:
    """The moment that a text means: a duration from now, before it or after, or the start of a day in UTC."""
    away_s = parse_duration_s(text)
    if away_s is not None and away_s <= _MAX_S:
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


_FILE_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
_COUNT_UNITS: Final = ("", "K", "M", "B", "T")
_AGES: Final = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))
NOTHING: Final = "-"


def size_words(size_bytes: int) -> str:
    """The size of a file, in the units that hubs use."""
    return _scaled(size_bytes, 1000, _FILE_UNITS) if size_bytes >= 1000 else f"{size_bytes} bytes"


def memory_words(size_mb: int) -> str:
    """An amount of memory, given in MiB."""
    return f"{size_mb} MiB" if size_mb < 1024 else f"{size_mb / 1024:.1f} GiB"


def count_words(count: int) -> str:
    """How many weights a model has, as its makers write it."""
    return _scaled(count, 1000, _COUNT_UNITS).replace(" ", "") if count else NOTHING


def number_words(number: int) -> str:
    """A number that may be unknown, which is written as 0."""
    return str(number) if number else NOTHING


def age_words(age_s: float) -> str:
    """How long ago something was."""
    for unit_s, unit in _AGES:
        count = int(age_s / unit_s)
        if count > 0:  # clocks of two machines differ
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def _scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    place = 0
    # 999.96 would be written as 1000.0: what is rounded decides.
    while round(number, 1) >= step and place < len(units) - 1:
        number, place = number / step, place + 1
    text = f"{number:.1f}" if number < 100 else f"{number:.0f}"
    return f"{text.removesuffix('.0')} {units[place]}"
