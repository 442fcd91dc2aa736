"""Costs as people write them, and as they are kept: in millionths of whatever unit the operator means."""

from decimal import Decimal, InvalidOperation
from typing import Final

from ganglion.core.errors import InvalidValue

MICROS: Final = 1_000_000
_MAX_UNITS: Final = 10**9


def micros_of(text: str, flag: str) -> int:
    """`12.50` in millionths; raises InvalidValue."""
    try:
        units = Decimal(text)
        micros = units * MICROS
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
    whole, rest = divmod(micros, MICROS)
    decimals = f"{rest:06d}".rstrip("0")
    return f"{whole}.{decimals:0<2}"
