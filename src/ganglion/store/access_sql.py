"""The SQL of keys, grants and usage."""

import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Final

from ganglion.store.access_store import (
    Grant,
    GrantKind,
    Grouping,
    HourlyUsage,
    StoredKey,
    UsageLine,
    UsageTotals,
    Window,
)
from ganglion.store.backend import DatabaseConnection, Row

_USAGE_KEPT_S: Final = 400 * 86400
"""A year, and some days to compare it with the one before."""
_SPENDERS_KEPT_S: Final = 7 * 86400
"""A gateway that was silent for so long does not send an old batch again."""
_GROUPS: Final[dict[Grouping, str]] = {
    "key": "key_id",
    "tenant": "tenant",
    "model": "model",
    "day": "hour_s / 86400 * 86400",
}
_SUMS: Final = tuple(field.name for field in fields(UsageTotals))
_ADD_USAGE: Final = f"""
    INSERT INTO spending (key_id, tenant, model, hour_s, {", ".join(_SUMS)})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key_id, tenant, model, hour_s) DO UPDATE SET
        {", ".join(f"{name} = spending.{name} + excluded.{name}" for name in _SUMS)}
"""  # noqa: S608 (nothing in it is a caller's text)


def add_usage(
    connection: DatabaseConnection, spender: str, batch: int, rows: Sequence[HourlyUsage], now_s: float
) -> None:
    """Add a batch to the sums, unless it was added before."""
    # A commit whose answer was lost may have happened: the number says so when the batch comes again.
    is_new = connection.rows(
        "INSERT INTO spenders (id, batch, told_s) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE"
        " SET batch = excluded.batch, told_s = excluded.told_s WHERE spenders.batch < excluded.batch"
        " RETURNING id",
        spender,
        batch,
        now_s,
    )
    if is_new and rows:
        connection.many(
            _ADD_USAGE, [(row.key_id, row.tenant, row.model, row.hour_s, *astuple(row.sums)) for row in rows]
        )


def usage(
    connection: DatabaseConnection, since_s: float, until_s: float, by: Sequence[Grouping]
) -> tuple[UsageLine, ...]:
    """Sums over the hours that begin in an interval."""
    columns = [
        f"{_GROUPS[name]} AS group_{name}" if name in by else f"NULL AS group_{name}" for name in _GROUPS
    ]
    totals = [f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in _SUMS]
    groups = [f"group_{name}" for name in _GROUPS if name in by]
    order = [*(["group_day"] if "day" in by else []), "9 DESC", "5 DESC", *groups]
    rows = connection.rows(
        f"SELECT {', '.join((*columns, *totals))} FROM spending WHERE hour_s >= ? AND hour_s < ?"  # noqa: S608
        f"{' GROUP BY ' + ', '.join(groups) if groups else ''} ORDER BY {', '.join(order)}",
        int(since_s),
        int(until_s),
    )
    return tuple(
        UsageLine(row[0], row[1], row[2], row[3], UsageTotals(*row[4:])) for row in rows if groups or row[4]
    )


def sweep_usage(connection: DatabaseConnection, now_s: float) -> None:
    """Remove usage of more than a year ago, and gateways that are gone."""
    connection.rows("DELETE FROM spending WHERE hour_s < ?", int(now_s) - _USAGE_KEPT_S)
    connection.rows("DELETE FROM spenders WHERE told_s < ?", now_s - _SPENDERS_KEPT_S)


_GRANTS_KEPT_S: Final = 3600
"""How long after its end a window is kept, for gateways whose clocks are slow."""


def grant(
    connection: DatabaseConnection,
    key_id: str,
    kind: GrantKind,
    window: Window,
    *,
    requested: int,
    cap: int,
    least: int,
) -> Grant:
    """As much as is requested and left, if that is enough."""
    # Written even where nothing is given: that locks the row, and what is read stays so until the commit.
    ((granted,),) = connection.rows(
        "INSERT INTO grants (key_id, kind, start_s, end_s, granted) VALUES (?, ?, ?, ?, 0)"
        " ON CONFLICT (key_id, kind, start_s) DO UPDATE SET granted = grants.granted RETURNING granted",
        key_id,
        kind,
        window.start_s,
        window.end_s,
    )
    left = max(0, cap - granted)
    amount = min(requested, left)
    if amount < least or amount <= 0:
        return Grant(0, left)
    _add_granted(connection, key_id, kind, window, amount)
    return Grant(amount, left - amount)


def give_back(
    connection: DatabaseConnection, key_id: str, kind: GrantKind, window: Window, amount: int
) -> None:
    """Take an amount off what was granted."""
    _add_granted(connection, key_id, kind, window, -amount)


def sweep_grants(connection: DatabaseConnection, now_s: float) -> None:
    """Remove windows that are long over."""
    connection.rows("DELETE FROM grants WHERE end_s < ?", int(now_s) - _GRANTS_KEPT_S)


def _add_granted(
    connection: DatabaseConnection, key_id: str, kind: GrantKind, window: Window, amount: int
) -> None:
    connection.rows(
        "UPDATE grants SET granted = granted + ? WHERE key_id = ? AND kind = ? AND start_s = ?",
        amount,
        key_id,
        kind,
        window.start_s,
    )


# The fields of a StoredKey are the columns of its table, and those of UsageTotals the sums of theirs.
_KEY_FIELDS: Final = tuple(field.name for field in fields(StoredKey))
_KEY_COLUMNS: Final = ", ".join(_KEY_FIELDS)


def take_turn(connection: DatabaseConnection) -> None:
    """Let one transaction at a time change the tables of keys.

    Transactions hold rows of many keys, in the order in which their callers came: without this two gateways
    on one PostgreSQL could each wait for a row that the other has locked.
    """
    connection.rows("UPDATE access_state SET value = value WHERE name = 'turn'")


def insert_key(connection: DatabaseConnection, key: StoredKey) -> bool:
    """Keep a key; False where a valid one has its name."""
    marks = ", ".join("?" * len(_KEY_FIELDS))
    models = None if key.models is None else json.dumps(key.models)
    added = connection.rows(
        f"INSERT INTO api_keys ({_KEY_COLUMNS}) VALUES ({marks})"  # noqa: S608 (nothing in it is a caller's text)
        " ON CONFLICT DO NOTHING RETURNING id",
        *(models if name == "models" else getattr(key, name) for name in _KEY_FIELDS),
    )
    if added:
        _bump_keys_version(connection)
    return bool(added)


def count_keys(connection: DatabaseConnection) -> int:
    """How many keys there ever were."""
    return int(connection.rows("SELECT count(*) FROM api_keys")[0][0])


def all_keys(connection: DatabaseConnection) -> tuple[StoredKey, ...]:
    """All keys, oldest first."""
    return tuple(
        _key(row)
        for row in connection.rows(f"SELECT {_KEY_COLUMNS} FROM api_keys ORDER BY created_s, id")  # noqa: S608
    )


def revoke_key(connection: DatabaseConnection, key_id: str, now_s: float) -> bool:
    """End a key that is not revoked yet."""
    revoked = connection.rows(
        "UPDATE api_keys SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL RETURNING id", now_s, key_id
    )
    if revoked:
        _bump_keys_version(connection)
    return bool(revoked)


def keys_version(connection: DatabaseConnection) -> int:
    """The number of changes to keys."""
    return int(connection.rows("SELECT value FROM access_state WHERE name = 'keys_version'")[0][0])


def _bump_keys_version(connection: DatabaseConnection) -> None:
    connection.rows("UPDATE access_state SET value = value + 1 WHERE name = 'keys_version'")


def _key(row: Row) -> StoredKey:
    key_id, digest, name, tenant, created_s, role, models, *rest = row
    allowed = None if models is None else tuple(json.loads(models))
    return StoredKey(key_id, bytes(digest), name, tenant, created_s, role, allowed, *rest)
