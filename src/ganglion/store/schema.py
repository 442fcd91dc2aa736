"""The database schema as numbered migrations; one that was released is never changed, the next one is added.

Type names are PostgreSQL's; SQLite takes any, and keeps bytes as bytes. Large columns stand last in their
table, so that SQLite reads the ones before without them.
"""

from typing import Final

from ganglion.core.errors import StoreUnusable
from ganglion.store.backend import UNUSABLE

_FIRST: Final = (
    """CREATE TABLE responses (
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        created_s DOUBLE PRECISION NOT NULL,
        status TEXT NOT NULL,
        model TEXT NOT NULL,
        previous_id TEXT,
        conversation_id TEXT,
        owner TEXT NOT NULL,
        size_bytes BIGINT NOT NULL,
        input_items BYTEA NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (tenant, id)
    )""",
    "CREATE INDEX responses_by_age ON responses (created_s, size_bytes)",
    "CREATE INDEX responses_unfinished ON responses (owner) WHERE status IN ('queued', 'in_progress')",
    """CREATE TABLE events (
        tenant TEXT NOT NULL,
        response_id TEXT NOT NULL,
        sequence_number BIGINT NOT NULL,
        frame BYTEA NOT NULL,
        PRIMARY KEY (tenant, response_id, sequence_number),
        FOREIGN KEY (tenant, response_id) REFERENCES responses (tenant, id) ON DELETE CASCADE
    )""",
    """CREATE TABLE conversations (
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        created_s DOUBLE PRECISION NOT NULL,
        used_s DOUBLE PRECISION NOT NULL,
        next_position BIGINT NOT NULL,
        size_bytes BIGINT NOT NULL,
        metadata BYTEA NOT NULL,
        PRIMARY KEY (tenant, id)
    )""",
    "CREATE INDEX conversations_by_age ON conversations (used_s, size_bytes)",
    """CREATE TABLE items (
        tenant TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        position BIGINT NOT NULL,
        id TEXT NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (tenant, conversation_id, position),
        UNIQUE (tenant, conversation_id, id),
        FOREIGN KEY (tenant, conversation_id) REFERENCES conversations (tenant, id) ON DELETE CASCADE
    )""",
    "CREATE TABLE secrets (name TEXT PRIMARY KEY, value BYTEA NOT NULL)",
)

_ACCESS: Final = (
    """CREATE TABLE api_keys (
        id TEXT PRIMARY KEY,
        digest BYTEA NOT NULL UNIQUE,
        name TEXT NOT NULL,
        tenant TEXT NOT NULL,
        role TEXT NOT NULL,
        models TEXT,
        requests_per_minute BIGINT,
        tokens_per_minute BIGINT,
        budget BIGINT,
        budget_period TEXT NOT NULL,
        expires_s DOUBLE PRECISION,
        priority BIGINT NOT NULL,
        created_s DOUBLE PRECISION NOT NULL,
        revoked_s DOUBLE PRECISION
    )""",
    "CREATE UNIQUE INDEX api_keys_by_name ON api_keys (name) WHERE revoked_s IS NULL",
    "CREATE TABLE access_state (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "INSERT INTO access_state (name, value) VALUES ('keys_version', 0), ('turn', 0)",
    """CREATE TABLE grants (
        key_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        start_s BIGINT NOT NULL,
        end_s BIGINT,
        granted BIGINT NOT NULL,
        PRIMARY KEY (key_id, kind, start_s)
    )""",
    "CREATE INDEX grants_by_end ON grants (end_s)",
    """CREATE TABLE spending (
        key_id TEXT NOT NULL,
        tenant TEXT NOT NULL,
        model TEXT NOT NULL,
        hour_s BIGINT NOT NULL,
        requests BIGINT NOT NULL,
        prompt_tokens BIGINT NOT NULL,
        completion_tokens BIGINT NOT NULL,
        cached_tokens BIGINT NOT NULL,
        cost BIGINT NOT NULL,
        PRIMARY KEY (key_id, tenant, model, hour_s)
    )""",
    "CREATE INDEX spending_by_hour ON spending (hour_s)",
    "CREATE TABLE spenders (id TEXT PRIMARY KEY, batch BIGINT NOT NULL, told_s DOUBLE PRECISION NOT NULL)",
)

MIGRATIONS: Final = (_FIRST, _ACCESS)
VERSION: Final = len(MIGRATIONS)


def steps_from(version: int, location: str) -> list[str]:
    """The statements that bring a database of that version up to date; refuses one from the future."""
    if version > VERSION:
        raise StoreUnusable(
            UNUSABLE,
            detail=f"{location} was written by a newer Ganglion: its schema is {version}, not {VERSION}.",
            hint="Run the newer version again, or set another location with store.url.",
        )
    return [statement for migration in MIGRATIONS[version:] for statement in migration]
