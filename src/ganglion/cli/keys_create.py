"""`ganglion keys create`: a new key, whose secret is printed once."""

import re
import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Group, Parameter, validators

from ganglion.cli.access_place import StoreFlag
from ganglion.cli.models_here import ConfigFile
from ganglion.cli.options import option
from ganglion.cli.talk import say

if TYPE_CHECKING:
    from ganglion.store.access_values import StoredKey

LIMITS: Final = Group("Limits (left out: none)", sort_key=2)
PREFIX: Final = "gk-"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 5
MAX_MODELS: Final = 256
# A tenant travels in a header, and names stand in metrics and logs.
_NAME: Final = re.compile(r"[A-Za-z0-9_.@:/+-]{1,64}", re.ASCII)
_COUNT: Final = Parameter(validator=validators.Number(gte=0, lte=10**15), group=LIMITS)


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
        str | None, Parameter(help="When it ends: 12h, 30d, 2w, or a date.", group=LIMITS)
    ] = None,
    requests_per_minute: Annotated[int | None, _COUNT, Parameter(help="Requests in each minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, _COUNT, Parameter(help="Tokens of prompts and answers in each minute.")
    ] = None,
    budget: Annotated[
        str | None,
        Parameter(help="What it may cost in each period, at the catalogue's prices.", group=LIMITS),
    ] = None,
    period: Annotated[
        Literal["day", "month", "total"], Parameter(help="What a budget is for.", group=LIMITS)
    ] = "month",
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """Make a key."""
    from hashlib import sha256
    from secrets import token_hex, token_urlsafe
    from time import time

    from ganglion.cli.access_place import on_store, place_of
    from ganglion.cli.money import micros_of
    from ganglion.store.access_values import StoredKey

    now_s = time()
    secret = PREFIX + token_urlsafe(SECRET_BYTES)
    key = StoredKey(
        id=f"key_{token_hex(ID_BYTES)}",
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
    place = place_of(store, config)
    on_store(place, lambda access: access.add_key(key), may_create=True)
    say(_told(key))
    sys.stdout.write(secret + "\n")


def _told(key: "StoredKey") -> str:
    from ganglion.cli.keys_list import limits_words

    limits = limits_words(key)
    return (
        f"{key.id} {key.name}, a key of role {key.role} for the tenant {key.tenant}\n"
        f"{limits or 'no limits'}\n"
        "this is the only time that it is shown:"
    )


def _checked(text: str, field: str) -> str:
    from ganglion.core.errors import InvalidValue

    if _NAME.fullmatch(text) is None or text.startswith("key_"):
        raise InvalidValue(
            f"A {field} is 1 to 64 letters, digits and _ . @ : / + -, and does not begin with key_;"
            f" found {text[:80]!r}.",
            param=field,
            hint="ganglion keys create web-shop --tenant shop",
        )
    return text


def _models(names: list[str] | None) -> tuple[str, ...] | None:
    from ganglion.core.errors import InvalidValue

    if names is not None and len(names) > MAX_MODELS:
        raise InvalidValue(f"A key names at most {MAX_MODELS} models, found {len(names)}.", param="model")
    return None if names is None else tuple(dict.fromkeys(names))


def _ending_s(text: str, now_s: float) -> float:
    from ganglion.cli.durations import moment_s
    from ganglion.core.errors import InvalidValue

    ending_s = moment_s(text, now_s, is_past=False, flag="--expires")
    if ending_s <= now_s:
        raise InvalidValue(f"--expires {text} is over.", param="expires", hint="--expires 30d")
    return ending_s
