"""The SQL of responses and their events."""

from collections.abc import Sequence
from typing import Final

from ganglion.store.backend import DatabaseConnection, Row
from ganglion.store.response_store import AbandonedResponse, StoredEvent, StoredResponse

_GET: Final = """
    SELECT tenant, id, created_s, status, model, body, input_items, previous_id, conversation_id
    FROM responses WHERE tenant = ? AND id = ?
"""
_UNFINISHED: Final = """
    SELECT tenant, id, created_s, status, model, body, input_items, previous_id, conversation_id, (
        SELECT max(sequence_number) FROM events
        WHERE events.tenant = responses.tenant AND events.response_id = responses.id
    ) FROM responses WHERE status IN ('queued', 'in_progress') AND owner = ? ORDER BY created_s LIMIT ?
"""
_PUT: Final = """
    INSERT INTO responses (
        tenant, id, created_s, status, model, body, input_items, previous_id, conversation_id,
        owner, size_bytes
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? + (
        SELECT coalesce(sum(length(frame)), 0) FROM events WHERE tenant = ? AND response_id = ?
    ))
    ON CONFLICT (tenant, id) DO UPDATE SET
        created_s = excluded.created_s, status = excluded.status, model = excluded.model,
        body = excluded.body, input_items = excluded.input_items, previous_id = excluded.previous_id,
        conversation_id = excluded.conversation_id, owner = excluded.owner, size_bytes = excluded.size_bytes
"""
# Of two endings that race, also on two servers, the second waits for the row and then finds it finished.
_REPLACE: Final = """
    UPDATE responses SET created_s = ?, status = ?, model = ?, body = ?, input_items = ?, previous_id = ?,
        conversation_id = ?, owner = ?, size_bytes = ? + (
            SELECT coalesce(sum(length(frame)), 0) FROM events WHERE tenant = ? AND response_id = ?
        )
    WHERE tenant = ? AND id = ? AND status IN ('queued', 'in_progress') RETURNING id
"""
_CHAIN: Final = """
    WITH RECURSIVE chain (depth, tenant, id, previous_id, size_bytes) AS (
        SELECT 0, tenant, id, previous_id, size_bytes FROM responses WHERE tenant = ? AND id = ?
        UNION ALL
        SELECT depth + 1, before.tenant, before.id, before.previous_id, before.size_bytes
        FROM chain JOIN responses AS before ON before.tenant = chain.tenant AND before.id = chain.previous_id
        WHERE depth + 1 < ?
    )
    SELECT id, size_bytes FROM chain ORDER BY depth
"""


def put(
    connection: DatabaseConnection, owner: str, response: StoredResponse, events: Sequence[StoredEvent]
) -> None:
    """Write a response over any with its id, and events of its stream."""
    connection.rows(_PUT, response.tenant, response.id, *_row(response, owner, events))
    _insert_events(connection, response.tenant, response.id, events)


def replace(
    connection: DatabaseConnection, owner: str, response: StoredResponse, events: Sequence[StoredEvent]
) -> bool:
    """Replace an unfinished response by a later version of it."""
    if not connection.rows(_REPLACE, *_row(response, owner, events), response.tenant, response.id):
        return False
    _insert_events(connection, response.tenant, response.id, events)
    return True


def get(connection: DatabaseConnection, tenant: str, response_id: str) -> StoredResponse | None:
    """The response of that id."""
    rows = connection.rows(_GET, tenant, response_id)
    return StoredResponse(*rows[0]) if rows else None


def delete(connection: DatabaseConnection, tenant: str, response_id: str) -> bool:
    """Remove a response and its events."""
    return bool(
        connection.rows("DELETE FROM responses WHERE tenant = ? AND id = ? RETURNING id", tenant, response_id)
    )


def chain(
    connection: DatabaseConnection, tenant: str, response_id: str, limit: int, max_bytes: int
) -> tuple[StoredResponse, ...]:
    """A response and those before it, oldest first, as far as the limits reach."""
    found: list[StoredResponse] = []
    seen: set[str] = set()
    for link, size_bytes in connection.rows(_CHAIN, tenant, response_id, limit):
        max_bytes -= size_bytes
        if link in seen or (found and max_bytes < 0):
            break
        response = get(connection, tenant, link)
        if response is None:
            break
        seen.add(link)
        found.append(response)
    return tuple(reversed(found))


def append_events(
    connection: DatabaseConnection, tenant: str, response_id: str, events: Sequence[StoredEvent]
) -> bool:
    """Write frames of a response's stream, if the response exists and is unfinished."""
    if not connection.rows(
        "SELECT 1 FROM responses WHERE tenant = ? AND id = ? AND status IN ('queued', 'in_progress')",
        tenant,
        response_id,
    ):
        return False
    _insert_events(connection, tenant, response_id, events)
    return True


def events_after(
    connection: DatabaseConnection, tenant: str, response_id: str, after: int, limit: int
) -> tuple[StoredEvent, ...]:
    """The kept frames after a number, in order."""
    rows = connection.rows(
        "SELECT sequence_number, frame FROM events WHERE tenant = ? AND response_id = ?"
        " AND sequence_number > ? ORDER BY sequence_number LIMIT ?",
        tenant,
        response_id,
        after,
        limit,
    )
    return tuple(StoredEvent(*row) for row in rows)


def unfinished_elsewhere(connection: DatabaseConnection, owner: str) -> list[str]:
    """The other owners that have unfinished responses."""
    sql = "SELECT DISTINCT owner FROM responses WHERE status IN ('queued', 'in_progress') AND owner <> ?"
    return [found for (found,) in connection.rows(sql, owner)]


def unfinished_of(connection: DatabaseConnection, owner: str, limit: int) -> list[AbandonedResponse]:
    """An owner's unfinished responses, oldest first, each with the number of its last event."""
    rows = connection.rows(_UNFINISHED, owner, limit)
    return [AbandonedResponse(StoredResponse(*row[:-1]), row[-1]) for row in rows]


def _row(response: StoredResponse, owner: str, events: Sequence[StoredEvent]) -> Row:
    """The values from `created_s` to `size_bytes`, which ends with the key of the events kept before.

    Events are counted when their response is written, not with each batch: an update writes the whole row
    anew, body and all, and counting along would cost more than the frames.
    """
    return (
        response.created_s,
        response.status,
        response.model,
        response.body,
        response.input_items,
        response.previous_id,
        response.conversation_id,
        owner,
        len(response.body) + len(response.input_items) + sum(len(event.frame) for event in events),
        response.tenant,
        response.id,
    )


def _insert_events(
    connection: DatabaseConnection, tenant: str, response_id: str, events: Sequence[StoredEvent]
) -> None:
    if events:
        connection.many(
            "INSERT INTO events (tenant, response_id, sequence_number, frame) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (tenant, response_id, sequence_number) DO NOTHING",
            [(tenant, response_id, event.sequence_number, event.frame) for event in events],
        )
