"""SQL of small random secrets that must outlive the server."""

from secrets import token_bytes
from typing import Final

from ganglion.store.session import Session

SECRET_BYTES: Final = 32


def secret(session: Session, name: str) -> bytes:
    """The bytes of that name, made when there are none."""
    session.rows(
        "INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        name,
        token_bytes(SECRET_BYTES),
    )
    value: bytes = session.rows("SELECT value FROM secrets WHERE name = ?", name)[0][0]
    return value
