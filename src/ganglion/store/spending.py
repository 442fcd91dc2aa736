"""SQL of what keys used: sums for each key, tenant, model and hour."""

from collections.abc import Sequence
from typing import Final

from ganglion.store.access_values import Grouping, Spent, Sums, UsageLine
from ganglion.store.session import Session

KEPT_S: Final = 400 * 86400
"""A year, and some days to compare it with the one before."""
SPENDERS_KEPT_S: Final = 7 * 86400
"""A gateway that has told nothing for so long does not send an old batch again."""
_GROUPS: Final[dict[Grouping, str]] = {
    "key": "key_id",
    "tenant": "tenant",
    "model": "model",
    "day": "hour_s / 86400 * 86400",
}
_SUMS: Final = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "cost")
_ADD: Final = f"""
    INSERT INTO spending (key_id, tenant, model, hour_s, {", ".join(_SUMS)})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key_id, tenant, model, hour_s) DO UPDATE SET
        {", ".join(f"{name} = spending.{name} + excluded.{name}" for name in _SUMS)}
"""  # noqa: S608 (nothing in it is anybody's word)


def add(session: Session, spender: str, batch: int, rows: Sequence[Spent], now_s: float) -> None:
    """Add a batch to the sums, unless it was added before."""
    # A commit whose answer was lost may have happened: the number says so when the batch comes again.
    is_new = session.rows(
        "INSERT INTO spenders (id, batch, told_s) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE"
        " SET batch = excluded.batch, told_s = excluded.told_s WHERE spenders.batch < excluded.batch"
        " RETURNING id",
        spender,
        batch,
        now_s,
    )
    if is_new and rows:
        session.many(
            _ADD, [(row.key_id, row.tenant, row.model, row.hour_s, *_sums(row.sums)) for row in rows]
        )


def usage(session: Session, since_s: float, until_s: float, by: Sequence[Grouping]) -> tuple[UsageLine, ...]:
    """Sums over the hours that begin in a stretch of time."""
    columns = [
        f"{_GROUPS[name]} AS group_{name}" if name in by else f"NULL AS group_{name}" for name in _GROUPS
    ]
    totals = [f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in _SUMS]
    groups = [f"group_{name}" for name in _GROUPS if name in by]
    order = [*(["group_day"] if "day" in by else []), "9 DESC", "5 DESC", *groups]
    rows = session.rows(
        f"SELECT {', '.join((*columns, *totals))} FROM spending WHERE hour_s >= ? AND hour_s < ?"  # noqa: S608
        f"{' GROUP BY ' + ', '.join(groups) if groups else ''} ORDER BY {', '.join(order)}",
        int(since_s),
        int(until_s),
    )
    return tuple(
        UsageLine(row[0], row[1], row[2], row[3], Sums(*row[4:])) for row in rows if groups or row[4]
    )


def sweep(session: Session, now_s: float) -> None:
    """Forget what is more than a year old, and gateways that are gone."""
    session.rows("DELETE FROM spending WHERE hour_s < ?", int(now_s) - KEPT_S)
    session.rows("DELETE FROM spenders WHERE told_s < ?", now_s - SPENDERS_KEPT_S)


def _sums(sums: Sums) -> tuple[int, ...]:
    return (sums.requests, sums.prompt_tokens, sums.completion_tokens, sums.cached_tokens, sums.cost)
