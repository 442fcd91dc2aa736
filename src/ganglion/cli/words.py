"""Numbers as people read them."""

from typing import Final

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
