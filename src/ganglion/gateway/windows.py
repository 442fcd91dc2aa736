"""The stretches of time for which caps hold: minutes, days and months in UTC, or all time.

Law: a window follows from the wall clock alone, so that gateways on different machines mean the same one.
Where their clocks differ by a second, one goes on counting in the old minute for that second; no minute's cap
is exceeded by it.
"""

from datetime import UTC, datetime

from ganglion.store.access_values import Period, Window

MINUTE_S = 60
DAY_S = 86400
ALL_TIME = Window(0, None)


def minute_of(now_s: float) -> Window:
    """The minute that runs."""
    start_s = int(now_s) // MINUTE_S * MINUTE_S
    return Window(start_s, start_s + MINUTE_S)


def period_of(period: Period, now_s: float) -> Window:
    """The period of a budget that runs."""
    match period:
        case "day":
            start_s = int(now_s) // DAY_S * DAY_S
            return Window(start_s, start_s + DAY_S)
        case "month":
            first = datetime.fromtimestamp(now_s, UTC).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            is_december = first.month == 12
            after = first.replace(year=first.year + is_december, month=1 if is_december else first.month + 1)
            return Window(int(first.timestamp()), int(after.timestamp()))
        case "total":
            return ALL_TIME
