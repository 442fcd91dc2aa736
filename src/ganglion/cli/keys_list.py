"""`ganglion keys list`: every key, what it may do and whether it is valid."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from ganglion.cli.access_place import StoreFlag
from ganglion.cli.models_here import ConfigFile, Json

if TYPE_CHECKING:
    from ganglion.store.access_values import StoredKey

HEADINGS: Final = ("id", "name", "tenant", "role", "models", "limits", "created", "state")


@dataclass(frozen=True, slots=True)
class Listed:
    """One key of the list, as `--json` prints it."""

    id: str
    name: str
    tenant: str
    role: str
    state: str
    """valid, expired or revoked."""
    models: tuple[str, ...] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    budget: str | None
    """In units, as a decimal number."""
    budget_period: str | None
    priority: int
    created: float
    expires: float | None
    revoked: float | None


def list_keys(
    *,
    all: Annotated[bool, Parameter(help="Revoked keys too.", negative=())] = False,  # noqa: A002 (the flag)
    json: Json = False,
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """Show the keys."""
    from time import time

    from ganglion.cli.access_place import on_store, place_of
    from ganglion.cli.output import Row, print_json, print_table

    now_s = time()
    keys = on_store(place_of(store, config), lambda access: access.keys())
    shown = [key for key in keys if all or key.revoked_s is None]
    if json:
        print_json([_listed(key, now_s) for key in shown])
    else:
        print_table(HEADINGS, [Row(_cells(key, now_s)) for key in shown])


def limits_words(key: "StoredKey") -> str:
    """What is counted against a key, in a line; empty for nothing."""
    from ganglion.cli.durations import date_words
    from ganglion.cli.money import units_words

    words = []
    if key.requests_per_minute is not None:
        words.append(f"{key.requests_per_minute} requests/min")
    if key.tokens_per_minute is not None:
        words.append(f"{key.tokens_per_minute} tokens/min")
    if key.budget is not None:
        period = "in all" if key.budget_period == "total" else f"a {key.budget_period}"
        words.append(f"{units_words(key.budget)} {period}")
    if key.expires_s is not None:
        words.append(f"until {date_words(key.expires_s)}")
    return ", ".join(words)


def _state(key: "StoredKey", now_s: float) -> str:
    if key.revoked_s is not None:
        return "revoked"
    return "expired" if key.expires_s is not None and key.expires_s <= now_s else "valid"


def _listed(key: "StoredKey", now_s: float) -> Listed:
    from ganglion.cli.money import units_words

    return Listed(
        id=key.id,
        name=key.name,
        tenant=key.tenant,
        role=key.role,
        state=_state(key, now_s),
        models=key.models,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        budget=None if key.budget is None else units_words(key.budget),
        budget_period=None if key.budget is None else key.budget_period,
        priority=key.priority,
        created=key.created_s,
        expires=key.expires_s,
        revoked=key.revoked_s,
    )


def _cells(key: "StoredKey", now_s: float) -> tuple[str, ...]:
    from ganglion.cli.durations import day_words
    from ganglion.cli.words import NOTHING

    return (
        key.id,
        key.name,
        key.tenant,
        key.role,
        "all" if key.models is None else " ".join(key.models),
        limits_words(key) or NOTHING,
        day_words(key.created_s),
        _state(key, now_s),
    )
