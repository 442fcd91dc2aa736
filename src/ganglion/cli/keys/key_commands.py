"""`ganglion keys create`, `list` and `revoke`; a new key's secret is printed once."""

import re
import sys
from hashlib import sha256
from secrets import token_hex, token_urlsafe
from time import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Group, Parameter, validators

from ganglion.cli.flags import ConfigFile, Json, option
from ganglion.cli.keys.access_store import StoreFlag, store_location, with_access_store
from ganglion.cli.terminal.console import say
from ganglion.cli.terminal.format import NOTHING, date_words, day_words, micros_of, moment_s, units_words
from ganglion.cli.terminal.output import TableRow, print_json, print_table
from ganglion.core.errors import InvalidValue

if TYPE_CHECKING:
    from ganglion.store.access_store import AccessStore, StoredKey


def revoke(
    key: Annotated[str, Parameter(help="The id of a key, or its name.")],
    /,
    *,
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """End a key."""

    async def work(access: "AccessStore") -> bool:
        found = _find_key(key, await access.keys())
        is_ended = await access.revoke(found.id)
        say(f"{found.id} {found.name} is revoked" if is_ended else f"{found.id} was revoked before")
        return is_ended

    with_access_store(store_location(store, config), work)


def _find_key(text: str, keys: "tuple[StoredKey, ...]") -> "StoredKey":
    by_id = [key for key in keys if key.id == text]
    by_name = [key for key in keys if key.name == text and key.revoked_s is None]
    for key in (*by_id, *by_name):
        return key
    if any(key.name == text for key in keys):
        raise InvalidValue(
            f"Every key that was called {text!r} is revoked.", param="key", hint="ganglion keys list --all"
        )
    raise InvalidValue(f"There is no key {text[:80]!r}.", param="key", hint="ganglion keys list shows all.")


_HEADINGS: Final = ("id", "name", "tenant", "role", "models", "limits", "created", "state")


def list_keys(
    *,
    all: Annotated[bool, Parameter(help="Revoked keys too.", negative=())] = False,  # noqa: A002 (the flag)
    json: Json = False,
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """Show the keys."""
    now_s = time()
    keys = with_access_store(store_location(store, config), lambda access: access.keys())
    shown = [key for key in keys if all or key.revoked_s is None]
    if json:
        print_json([_listed(key, now_s) for key in shown])
    else:
        print_table(_HEADINGS, [TableRow(_cells(key, now_s)) for key in shown])


def _limits_words(key: "StoredKey") -> str:
    """The limits of a key in one line; empty where it has none."""
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


def _state(key: "StoredKey", now_s: float) -> Literal["valid", "expired", "revoked"]:
    if key.revoked_s is not None:
        return "revoked"
    return "expired" if key.expires_s is not None and key.expires_s <= now_s else "valid"


def _listed(key: "StoredKey", now_s: float) -> dict[str, object]:
    """One key, as `--json` prints it; the budget is in units, as a decimal number."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "role": key.role,
        "state": _state(key, now_s),
        "models": key.models,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "budget": None if key.budget is None else units_words(key.budget),
        "budget_period": None if key.budget is None else key.budget_period,
        "priority": key.priority,
        "created": key.created_s,
        "expires": key.expires_s,
        "revoked": key.revoked_s,
    }


def _cells(key: "StoredKey", now_s: float) -> tuple[str, ...]:
    return (
        key.id,
        key.name,
        key.tenant,
        key.role,
        "all" if key.models is None else " ".join(key.models),
        _limits_words(key) or NOTHING,
        day_words(key.created_s),
        _state(key, now_s),
    )


_LIMITS: Final = Group("Limits (left out: none)", sort_key=2)
_PREFIX: Final = "gk-"
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 5
_MAX_MODELS: Final = 256
# A tenant travels in a header, and names stand in metrics and logs.
_NAME: Final = re.compile(r"[A-Za-z0-9_.@:/+-]{1,64}", re.ASCII)
_COUNT: Final = Parameter(validator=validators.Number(gte=0, lte=10**15), group=_LIMITS)


def create(
    name: Annotated[str, Parameter(help="What people call it; free again once the key is revoked.")],
    /,
    *,
    tenant: Annotated[str | None, option("Whose requests they are (default: the name).")] = None,
    role: Annotated[
        Literal["user", "node", "admin"],
        option("A user calls models, a node joins the fleet, an admin does everything."),
    ] = "user",
    model: Annotated[
        list[str] | None,
        Parameter(help="A model it may use; may be repeated (default: all).", negative=()),
    ] = None,
    priority: Annotated[
        int,
        Parameter(
            help="The most urgent that its requests may be; lower is more urgent.",
            validator=validators.Number(gte=-1000, lte=1000),
        ),
    ] = 0,
    expires: Annotated[
        str | None, Parameter(help="When it ends: 12h, 30d, 2w, or a date.", group=_LIMITS)
    ] = None,
    requests_per_minute: Annotated[int | None, _COUNT, Parameter(help="Requests in each minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, _COUNT, Parameter(help="Tokens of prompts and answers in each minute.")
    ] = None,
    budget: Annotated[
        str | None,
        Parameter(help="What it may cost in each period, at the catalogue's prices.", group=_LIMITS),
    ] = None,
    period: Annotated[
        Literal["day", "month", "total"], Parameter(help="What a budget is for.", group=_LIMITS)
    ] = "month",
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """Make a key."""
    from ganglion.store.access_store import StoredKey

    now_s = time()
    secret = _PREFIX + token_urlsafe(_SECRET_BYTES)
    key = StoredKey(
        id=f"key_{token_hex(_ID_BYTES)}",
        digest=sha256(secret.encode()).digest(),
        name=_checked(name, "name"),
        tenant=_checked(tenant or name, "tenant"),
        created_s=now_s,
        role=role,
        models=_models(model),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        budget=None if budget is None else micros_of(budget, "--budget"),
        budget_period=period,
        expires_s=None if expires is None else _ending_s(expires, now_s),
        priority=priority,
    )
    place = store_location(store, config)
    with_access_store(place, lambda access: access.add_key(key), may_create=True)
    say(_summary(key))
    sys.stdout.write(secret + "\n")


def _summary(key: "StoredKey") -> str:
    return (
        f"{key.id} {key.name}, a key of role {key.role} for the tenant {key.tenant}\n"
        f"{_limits_words(key) or 'no limits'}\n"
        "this is the only time that it is shown:"
    )


def _checked(text: str, field: str) -> str:
    if _NAME.fullmatch(text) is None or text.startswith("key_"):
        raise InvalidValue(
            f"A {field} is 1 to 64 letters, digits and _ . @ : / + -, and does not begin with key_;"
            f" found {text[:80]!r}.",
            param=field,
            hint="ganglion keys create web-shop --tenant shop",
        )
    return text


def _models(names: list[str] | None) -> tuple[str, ...] | None:
    if names is not None and len(names) > _MAX_MODELS:
        raise InvalidValue(f"A key names at most {_MAX_MODELS} models, found {len(names)}.", param="model")
    return None if names is None else tuple(dict.fromkeys(names))


def _ending_s(text: str, now_s: float) -> float:
    ending_s = moment_s(text, now_s, is_past=False, flag="--expires")
    if ending_s <= now_s:
        raise InvalidValue(f"--expires {text} is over.", param="expires", hint="--expires 30d")
    return ending_s
