"""SQL of keys, and of the number that says whether they changed."""

import json
from typing import Final

from ganglion.store.access_values import StoredKey
from ganglion.store.session import Row, Session

_COLUMNS: Final = (
    "id, digest, name, tenant, created_s, role, models, requests_per_minute, tokens_per_minute,"
    " budget, budget_period, expires_s, priority, revoked_s"
)


def take_turn(session: Session) -> None:
    """Let one transaction at a time change what is kept of keys.

    Transactions hold rows of many keys, in the order in which their callers came: without this two gateways
    on one PostgreSQL could each wait for what the other holds.
    """
    session.rows("UPDATE access_state SET value = value WHERE name = 'turn'")


def add(session: Session, key: StoredKey) -> bool:
    """Keep a key; False where a valid one has its name."""
    marks = ", ".join("?" * len(_COLUMNS.split(",")))
    added = session.rows(
        f"INSERT INTO api_keys ({_COLUMNS}) VALUES ({marks})"  # noqa: S608 (nothing in it is anybody's word)
        " ON CONFLICT DO NOTHING RETURNING id",
        *_row(key),
    )
    if added:
        _changed(session)
    return bool(added)


def count(session: Session) -> int:
    """How many there ever were."""
    return int(session.rows("SELECT count(*) FROM api_keys")[0][0])


def every(session: Session) -> tuple[StoredKey, ...]:
    """All of them, oldest first."""
    return tuple(
        _key(row)
        for row in session.rows(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_s, id")  # noqa: S608
    )


def revoke(session: Session, key_id: str, now_s: float) -> bool:
    """End a key that is not revoked yet."""
    revoked = session.rows(
        "UPDATE api_keys SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL RETURNING id", now_s, key_id
    )
    if revoked:
        _changed(session)
    return bool(revoked)


def version(session: Session) -> int:
    """How often keys were changed."""
    return int(session.rows("SELECT value FROM access_state WHERE name = 'keys_version'")[0][0])


def _changed(session: Session) -> None:
    session.rows("UPDATE access_state SET value = value + 1 WHERE name = 'keys_version'")


def _row(key: StoredKey) -> Row:
    return (
        key.id,
        key.digest,
        key.name,
        key.tenant,
        key.created_s,
        key.role,
        None if key.models is None else json.dumps(key.models),
        key.requests_per_minute,
        key.tokens_per_minute,
        key.budget,
        key.budget_period,
        key.expires_s,
        key.priority,
        key.revoked_s,
    )


def _key(row: Row) -> StoredKey:
    key_id, digest, name, tenant, created_s, role, models, *rest = row
    allowed = None if models is None else tuple(json.loads(models))
    return StoredKey(key_id, bytes(digest), name, tenant, created_s, role, allowed, *rest)
