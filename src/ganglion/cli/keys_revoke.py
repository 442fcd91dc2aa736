"""`ganglion keys revoke`: end a key."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion.cli.access_place import StoreFlag
from ganglion.cli.models_here import ConfigFile
from ganglion.cli.talk import say

if TYPE_CHECKING:
    from ganglion.store.access import AccessStore
    from ganglion.store.access_values import StoredKey


def revoke(
    key: Annotated[str, Parameter(help="The id of a key, or its name.")],
    /,
    *,
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """End a key."""
    from ganglion.cli.access_place import on_store, place_of

    async def work(access: "AccessStore") -> bool:
        found = _meant(key, await access.keys())
        is_ended = await access.revoke(found.id)
        say(f"{found.id} {found.name} is revoked" if is_ended else f"{found.id} was revoked before")
        return is_ended

    on_store(place_of(store, config), work)


def _meant(text: str, keys: "tuple[StoredKey, ...]") -> "StoredKey":
    from ganglion.core.errors import InvalidValue

    by_id = [key for key in keys if key.id == text]
    by_name = [key for key in keys if key.name == text and key.revoked_s is None]
    for key in (*by_id, *by_name):
        return key
    if any(key.name == text for key in keys):
        raise InvalidValue(
            f"Every key that was called {text!r} is revoked.", param="key", hint="ganglion keys list --all"
        )
    raise InvalidValue(f"There is no key {text[:80]!r}.", param="key", hint="ganglion keys list shows all.")
