"""Whose request it is, and what a gateway says of it.

Law: these headers are read here and by nobody else; below the layer that judges a key no door sees them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, assert_never

from ganglion.core.engine import ModelState
from ganglion.core.errors import InvalidValue
from ganglion.core.request import Request
from ganglion.gateway.access.admission import MOST_URGENT
from ganglion.server.middleware.keys import KeyHolder
from ganglion.wire import headers

# No space: the tenant is part of a salt, in which one stands before the steering.
_NAME: Final = re.compile(rb"[!-~]{0,128}")
_AFFINITY: Final = re.compile(rb"[0-9a-f]{0,64}")
_PRIORITY: Final = re.compile(rb"-?[0-9]{1,4}")
LEAST_URGENT: Final = 1000


@dataclass(frozen=True, slots=True)
class Principal:
    """A request's owner, and what whoever vouches for it adds."""

    tenant: str = ""
    key_id: str = ""
    """Names the client's key at the gateway, without being it."""
    priority: int | None = None
    """The most urgent that it may be; None leaves it to the request."""
    affinity: str = ""
    wants_usage: bool = False
    """End streams with the counts of what they took."""
    models: frozenset[str] | None = None
    """The names that its key may ask for; None for all."""
    is_admin: bool = False
    """Whether it may change what the server holds, and not merely ask."""

    def visible(self, models: Iterable[ModelState]) -> tuple[ModelState, ...]:
        """Those of the models that it may ask for, under the names by which it may."""
        if self.models is None:
            return tuple(models)
        found = []
        for model in models:
            names = [name for name in (model.id, *model.aliases) if name in self.models]
            if names:
                found.append(replace(model, id=names[0], aliases=tuple(names[1:])))
        return tuple(found)

    def urgency(self, asked: int) -> int:
        """The priority that it gets, whatever it asks for."""
        return asked if self.priority is None else max(asked, self.priority)

    def bounded(self, request: Request) -> Request:
        """The request as it may run."""
        priority = self.urgency(request.priority)
        affinity = self.affinity or request.affinity
        if priority == request.priority and affinity == request.affinity:
            return request
        return replace(request, priority=priority, affinity=affinity)


ANONYMOUS: Final = Principal()

HeaderLookup = Callable[[bytes], bytes | None]
"""The first value under a name, in lower case."""


def principal_of(holder: KeyHolder, values: HeaderLookup) -> Principal:
    """Whose request it is by the key that it brought, and what its own headers add where they are believed.

    Raises InvalidValue for headers that no gateway of ours sends.
    """
    match holder.role:
        case "gateway":
            return principal_from_gateway(values, holder.tenant)
        case "admin":
            return Principal(holder.tenant, is_admin=True)
        case "user":
            return Principal(holder.tenant, priority=holder.most_urgent)
        case "anybody":
            return principal_without_keys(values, holder.tenant)
        case _:
            assert_never(holder.role)


def principal_from_gateway(values: HeaderLookup, tenant: str) -> Principal:
    """What a gateway says of a request; `tenant` is its own, for calls that it makes for nobody.

    Raises InvalidValue for what no gateway of ours sends.
    """
    named = _read(values, headers.TENANT, _NAME, "at most 128 visible characters")
    priority = _read(values, headers.PRIORITY, _PRIORITY, "a whole number")
    return Principal(
        tenant=tenant if named is None else named,
        key_id=_read(values, headers.KEY, _NAME, "at most 128 visible characters") or "",
        priority=None if priority is None else max(MOST_URGENT, min(LEAST_URGENT, int(priority))),
        affinity=_read(values, headers.AFFINITY, _AFFINITY, "at most 64 hexadecimal digits") or "",
        wants_usage=values(headers.USAGE) == b"1",
        is_admin=True,  # the gateway judged what its client may do before it passed the request on
    )


def principal_without_keys(values: HeaderLookup, tenant: str) -> Principal:
    """What anybody may say where there are no keys: it binds nobody but the request itself."""
    told = principal_from_gateway(values, tenant)
    return Principal(tenant, affinity=told.affinity, wants_usage=told.wants_usage, is_admin=True)


def _read(values: HeaderLookup, name: bytes, pattern: re.Pattern[bytes], expected: str) -> str | None:
    value = values(name)
    if value is None:
        return None
    if not pattern.fullmatch(value):
        shown = name.decode()
        raise InvalidValue(f"Expected {expected} in the header '{shown}'.", param=shown)
    return value.decode()
