"""SQL of what was granted of each cap in each window."""

from typing import Final

from ganglion.store.access_values import Grant, GrantKind, Window
from ganglion.store.session import Session

KEPT_S: Final = 3600
"""How long after its end a window is kept, for gateways whose clocks are slow."""


def grant(
    session: Session, key_id: str, kind: GrantKind, window: Window, *, wanted: int, cap: int, least: int
) -> Grant:
    """As much as is wanted and left, if that is enough."""
    # Written even where nothing is given: that locks the row, and what is read stays so until the commit.
    ((granted,),) = session.rows(
        "INSERT INTO grants (key_id, kind, start_s, end_s, granted) VALUES (?, ?, ?, ?, 0)"
        " ON CONFLICT (key_id, kind, start_s) DO UPDATE SET granted = grants.granted RETURNING granted",
        key_id,
        kind,
        window.start_s,
        window.end_s,
    )
    left = max(0, cap - granted)
    amount = min(wanted, left)
    if amount < least or amount <= 0:
        return Grant(0, left)
    _add(session, key_id, kind, window, amount)
    return Grant(amount, left - amount)


def give_back(session: Session, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
    """Take an amount off what was granted."""
    _add(session, key_id, kind, window, -amount)


def sweep(session: Session, now_s: float) -> None:
    """Forget windows that are long over."""
    session.rows("DELETE FROM grants WHERE end_s < ?", int(now_s) - KEPT_S)


def _add(session: Session, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
    session.rows(
        "UPDATE grants SET granted = granted + ? WHERE key_id = ? AND kind = ? AND start_s = ?",
        amount,
        key_id,
        kind,
        window.start_s,
    )
