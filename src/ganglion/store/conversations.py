"""The SQL of conversations and their items."""

from collections.abc import Sequence

from ganglion.store.backend import DatabaseConnection, Row
from ganglion.store.response_store import MAX_PAGE_BYTES, NewItem, StoredConversation, StoredItem


def create(
    connection: DatabaseConnection, conversation: StoredConversation, items: Sequence[NewItem], now_s: float
) -> None:
    """Keep a new conversation with its first items."""
    connection.rows(
        "INSERT INTO conversations (tenant, id, created_s, used_s, next_position, size_bytes, metadata)"
        " VALUES (?, ?, ?, ?, 0, ?, ?) ON CONFLICT (tenant, id) DO NOTHING",
        conversation.tenant,
        conversation.id,
        conversation.created_s,
        now_s,
        len(conversation.metadata),
        conversation.metadata,
    )
    append(connection, conversation.tenant, conversation.id, items, now_s)


def get(connection: DatabaseConnection, tenant: str, conversation_id: str) -> StoredConversation | None:
    """The conversation of that id."""
    rows = connection.rows(
        "SELECT tenant, id, created_s, metadata FROM conversations WHERE tenant = ? AND id = ?",
        tenant,
        conversation_id,
    )
    return StoredConversation(*rows[0]) if rows else None


def set_metadata(connection: DatabaseConnection, tenant: str, conversation_id: str, metadata: bytes) -> bool:
    """Replace a conversation's metadata."""
    return bool(
        connection.rows(
            "UPDATE conversations SET size_bytes = size_bytes - length(metadata) + ?, metadata = ?"
            " WHERE tenant = ? AND id = ? RETURNING id",
            len(metadata),
            metadata,
            tenant,
            conversation_id,
        )
    )


def delete(connection: DatabaseConnection, tenant: str, conversation_id: str) -> bool:
    """Remove a conversation with its items."""
    return bool(
        connection.rows(
            "DELETE FROM conversations WHERE tenant = ? AND id = ? RETURNING id", tenant, conversation_id
        )
    )


def append(
    connection: DatabaseConnection, tenant: str, conversation_id: str, items: Sequence[NewItem], now_s: float
) -> bool:
    """Add the items that the conversation does not hold yet, if there is such a conversation."""
    # The update comes first because it locks the conversation: positions are given out one writer at a time.
    rows = connection.rows(
        "UPDATE conversations SET used_s = ? WHERE tenant = ? AND id = ? RETURNING next_position",
        now_s,
        tenant,
        conversation_id,
    )
    if not rows:
        return False
    new = {
        item.id: item.body
        for item in reversed(items)
        if get_item(connection, tenant, conversation_id, item.id) is None
    }
    added = [NewItem(key, body) for key, body in reversed(new.items())]
    if not added:
        return True
    start: int = rows[0][0]
    connection.many(
        "INSERT INTO items (tenant, conversation_id, position, id, body) VALUES (?, ?, ?, ?, ?)",
        [(tenant, conversation_id, start + offset, item.id, item.body) for offset, item in enumerate(added)],
    )
    connection.rows(
        "UPDATE conversations SET next_position = ?, size_bytes = size_bytes + ? WHERE tenant = ? AND id = ?",
        start + len(added),
        sum(len(item.body) for item in added),
        tenant,
        conversation_id,
    )
    return True


def items(
    connection: DatabaseConnection,
    tenant: str,
    conversation_id: str,
    after: int | None,
    *,
    limit: int,
    is_descending: bool,
) -> tuple[StoredItem, ...]:
    """Items beyond a position, in the order of positions or against it, as many as a page may hold."""
    comparison, order, start = ("<", "DESC", 2**63 - 1) if is_descending else (">", "ASC", -1)
    rows = connection.rows(
        "SELECT position, length(body) FROM items WHERE tenant = ? AND conversation_id = ?"  # noqa: S608
        f" AND position {comparison} ? ORDER BY position {order} LIMIT ?",
        tenant,
        conversation_id,
        start if after is None else after,
        limit,
    )
    positions = _within_a_page(rows)
    if not positions:
        return ()
    rows = connection.rows(
        "SELECT position, id, body FROM items WHERE tenant = ? AND conversation_id = ?"  # noqa: S608
        f" AND position BETWEEN ? AND ? ORDER BY position {order}",
        tenant,
        conversation_id,
        min(positions),
        max(positions),
    )
    return tuple(StoredItem(*row) for row in rows)


def _within_a_page(rows: list[Row]) -> list[int]:
    """The positions whose items together are not too large; at least one."""
    positions: list[int] = []
    size_bytes = 0
    for position, body_bytes in rows:
        size_bytes += body_bytes
        if positions and size_bytes > MAX_PAGE_BYTES:
            break
        positions.append(position)
    return positions


def get_item(
    connection: DatabaseConnection, tenant: str, conversation_id: str, item_id: str
) -> StoredItem | None:
    """One item of a conversation."""
    rows = connection.rows(
        "SELECT position, id, body FROM items WHERE tenant = ? AND conversation_id = ? AND id = ?",
        tenant,
        conversation_id,
        item_id,
    )
    return StoredItem(*rows[0]) if rows else None


def delete_item(connection: DatabaseConnection, tenant: str, conversation_id: str, item_id: str) -> bool:
    """Remove one item."""
    rows = connection.rows(
        "DELETE FROM items WHERE tenant = ? AND conversation_id = ? AND id = ? RETURNING length(body)",
        tenant,
        conversation_id,
        item_id,
    )
    for (size_bytes,) in rows:
        connection.rows(
            "UPDATE conversations SET size_bytes = size_bytes - ? WHERE tenant = ? AND id = ?",
            size_bytes,
            tenant,
            conversation_id,
        )
    return bool(rows)
