"""The SQL of removal by age and by size, over all tenants."""

from dataclasses import dataclass
from typing import Final, Literal

from ganglion.store import conversations, responses
from ganglion.store.backend import DatabaseConnection
from ganglion.store.response_store import Retention, SweepResult

_BATCH: Final = 64
"""Removed in one transaction: other writers run between two of them."""
_OLDEST: Final = """
    SELECT 'response' AS kind, tenant, id, created_s AS age_s, size_bytes FROM responses
    WHERE status NOT IN ('queued', 'in_progress')
    UNION ALL
    SELECT 'conversation', tenant, id, used_s, size_bytes FROM conversations
    ORDER BY age_s LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class _Removable:
    """A response or conversation that may be removed, and when it was last used."""

    kind: Literal["response", "conversation"]
    tenant: str
    id: str
    since_s: float
    size_bytes: int


def removable(connection: DatabaseConnection, retention: Retention, now_s: float) -> list[_Removable]:
    """The next ones to remove, oldest first; none when everything may stay."""
    found = [_Removable(*row) for row in connection.rows(_OLDEST, _BATCH)]
    too_many_bytes = 0 if retention.max_bytes is None else _kept_bytes(connection) - retention.max_bytes
    going: list[_Removable] = []
    for old in found:
        is_too_old = retention.max_age_s is not None and old.since_s < now_s - retention.max_age_s
        if not is_too_old and too_many_bytes <= 0:
            break
        going.append(old)
        too_many_bytes -= old.size_bytes
    return going


def _kept_bytes(connection: DatabaseConnection) -> int:
    """The size of all responses and conversations."""
    sql = """SELECT (SELECT coalesce(sum(size_bytes), 0) FROM responses)
                  + (SELECT coalesce(sum(size_bytes), 0) FROM conversations)"""
    return int(connection.rows(sql)[0][0])


def sum_of(one: SweepResult, other: SweepResult) -> SweepResult:
    """Two sweeps as one."""
    return SweepResult(
        one.responses + other.responses,
        one.conversations + other.conversations,
        one.size_bytes + other.size_bytes,
    )


def remove(connection: DatabaseConnection, found: list[_Removable]) -> SweepResult:
    """Remove those that have not changed since; a conversation that was continued stays."""
    gone_responses, gone_conversations, size_bytes = 0, 0, 0
    for old in found:
        if old.kind == "response":
            is_gone = responses.delete(connection, old.tenant, old.id)
            gone_responses += is_gone
        else:
            is_gone = bool(
                connection.rows(
                    "SELECT 1 FROM conversations WHERE tenant = ? AND id = ? AND used_s = ?",
                    old.tenant,
                    old.id,
                    old.since_s,
                )
            ) and conversations.delete(connection, old.tenant, old.id)
            gone_conversations += is_gone
        size_bytes += old.size_bytes * is_gone
    connection.shrink()
    return SweepResult(gone_responses, gone_conversations, size_bytes)
