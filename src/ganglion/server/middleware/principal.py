"""The principal of a request, over HTTP and gRPC: whose it is by its key, and what a gateway says of it.

Law: our own headers are read here and nowhere else; no endpoint below the authentication layer sees them.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from ganglion.core.engine import ModelState
from ganglion.core.errors import InvalidApiKey, InvalidValue
from ganglion.core.request import LEAST_URGENT, MOST_URGENT, Request
from ganglion.server.fleet_membership import AFFINITY_PATTERN, Leases
from ganglion.server.settings import ServerSettings
from ganglion.wire import headers

_Role = Literal["user", "admin", "gateway", "anybody"]
"""A user asks models; an admin also changes which models are held; a gateway is an admin who is believed in
what it says of a request; anybody is a caller where there are no keys, and may do what an admin may."""

_BEARER: Final = b"bearer "
_TENANT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class _KeyHolder:
    """The holder of a key."""

    tenant: str = ""
    role: _Role = "anybody"
    most_urgent: int = 0
    """The lowest priority that a user's requests may have; the others' are not bounded."""


_ANYBODY: Final = _KeyHolder()
"""Every caller where there are no keys."""


class KeyRing:
    """The keys that are valid now, kept as digests; they can change at any time."""

    def __init__(
        self,
        api_keys: Sequence[str],
        gateway_keys: Sequence[str] = (),
        admin_keys: Sequence[str] = (),
        *,
        most_urgent: int = 0,
    ) -> None:
        self._most_urgent = most_urgent
        self.replace(api_keys, gateway_keys, admin_keys)

    @property
    def is_empty(self) -> bool:
        """Whether no key is needed."""
        return not self._holders

    def replace(
        self, api_keys: Sequence[str], gateway_keys: Sequence[str] = (), admin_keys: Sequence[str] = ()
    ) -> None:
        """From the next request on, these keys are valid and no others.

        A key in several lists is an admin's before a user's, and a gateway's before both.
        """
        by_role: tuple[tuple[_Role, Sequence[str]], ...] = (
            ("user", api_keys),
            ("admin", admin_keys),
            ("gateway", gateway_keys),
        )
        self._holders = tuple(
            (digest, _KeyHolder(digest.hex()[:_TENANT_DIGITS], role, self._most_urgent))
            for role, keys in by_role
            for digest in map(_digest, keys)
        )

    def holder_of(self, key: bytes | None) -> _KeyHolder | None:
        """The holder of a key: None for a key that is not valid, ANYBODY where there are no keys."""
        if self.is_empty:
            return _ANYBODY
        if key is None:
            return None
        presented = hashlib.sha256(key).digest()
        found = None
        for digest, holder in self._holders:  # all of them, so that time says nothing about which
            if hmac.compare_digest(digest, presented):
                found = holder
        return found

    def may_set_request_id(self, key: bytes | None) -> bool:
        """Whether the request id that a caller brings is used: a gateway's, and anybody's without keys."""
        holder = self.holder_of(key)
        return holder is not None and holder.role in ("gateway", "anybody")


def key_ring(settings: ServerSettings) -> KeyRing:
    """The keys that an operator configured."""
    return KeyRing(
        settings.api_keys, settings.gateway_keys, settings.admin_keys, most_urgent=settings.most_urgent
    )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


# No space: the tenant is part of a salt, in which one stands before the steering.
_NAME: Final = re.compile(rb"[!-~]{0,128}")
_AFFINITY: Final = re.compile(rf"({AFFINITY_PATTERN})?".encode())
_PRIORITY: Final = re.compile(rb"-?[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a request, and what a trusted gateway adds."""

    tenant: str = ""
    key_id: str = ""
    """The id of the client's key at the gateway, which is not the key itself."""
    priority: int | None = None
    """The most urgent priority that the request may have; None leaves it to the request."""
    affinity: str = ""
    wants_usage: bool = False
    """Whether streams end with their token counts."""
    models: frozenset[str] | None = None
    """The names that its key may ask for; None for all."""
    is_admin: bool = False
    """Whether it may change what the server holds."""

    def visible(self, models: Iterable[ModelState]) -> tuple[ModelState, ...]:
        """The models that it may ask for, under the names by which it may."""
        if self.models is None:
            return tuple(models)
        found = []
        for model in models:
            names = [name for name in (model.id, *model.aliases) if name in self.models]
            if names:
                found.append(replace(model, id=names[0], aliases=tuple(names[1:])))
        return tuple(found)

    def bounded_priority(self, priority: int) -> int:
        """The priority that a request gets when it asks for this one."""
        return priority if self.priority is None else max(priority, self.priority)

    def bounded(self, request: Request) -> Request:
        """The request with the priority and affinity that it gets."""
        priority = self.bounded_priority(request.priority)
        affinity = self.affinity or request.affinity
        if priority == request.priority and affinity == request.affinity:
            return request
        return replace(request, priority=priority, affinity=affinity)


ANONYMOUS: Final = Principal()

HeaderLookup = Callable[[bytes], bytes | None]
"""Looks up the first value of a header by its name in lower case."""


def presented_key(lookup: HeaderLookup, *, has_key_header: bool = True) -> bytes | None:
    """The key that a request brings in `Authorization` or, where that counts, in `x-api-key`."""
    authorization = lookup(b"authorization")
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return lookup(headers.API_KEY) if has_key_header else None


def identify(
    keys: KeyRing,
    leases: Leases,
    lookup: HeaderLookup,
    *,
    is_public: bool,
    is_work: bool,
    has_key_header: bool = True,
) -> Principal:
    """The principal of a request with these headers.

    Without a valid key only what is public is let in. Work is refused under a lease that is not held. Raises
    InvalidApiKey, LeaseLost, and InvalidValue for headers that no gateway of ours sends.
    """
    key = presented_key(lookup, has_key_header=has_key_header)
    holder = keys.holder_of(key)
    if holder is None:
        if is_public:
            return ANONYMOUS
        if key is None:
            raise InvalidApiKey("No API key was given.", hint="Send it as 'Authorization: Bearer KEY'.")
        raise InvalidApiKey("The API key is not valid here.")
    epoch = lookup(headers.EPOCH) if is_work else None
    if epoch is not None:  # believed of anybody: all that it can do is to have its own request refused
        leases.check(epoch)
    match holder.role:
        case "gateway":
            return principal_from_gateway(lookup, holder.tenant)
        case "admin":
            return Principal(holder.tenant, is_admin=True)
        case "user":
            return Principal(holder.tenant, priority=holder.most_urgent)
        case "anybody":
            # Where there are no keys, headers count that affect only the request itself.
            said = principal_from_gateway(lookup, holder.tenant)
            return Principal(
                holder.tenant, affinity=said.affinity, wants_usage=said.wants_usage, is_admin=True
            )
        case _:
            assert_never(holder.role)


def principal_from_gateway(lookup: HeaderLookup, tenant: str) -> Principal:
    """The principal that a gateway names; `tenant` is the gateway's own, for calls that it makes for nobody.

    Raises InvalidValue for what no gateway of ours sends.
    """
    named = _header(lookup, headers.TENANT, _NAME, "at most 128 visible characters")
    priority = _header(lookup, headers.PRIORITY, _PRIORITY, "a whole number")
    return Principal(
        tenant=tenant if named is None else named,
        key_id=_header(lookup, headers.KEY, _NAME, "at most 128 visible characters") or "",
        priority=None if priority is None else max(MOST_URGENT, min(LEAST_URGENT, int(priority))),
        affinity=_header(lookup, headers.AFFINITY, _AFFINITY, "at most 64 hexadecimal digits") or "",
        wants_usage=lookup(headers.USAGE) == b"1",
        is_admin=True,  # the gateway judged what its client may do before it passed the request on
    )


def _header(lookup: HeaderLookup, name: bytes, pattern: re.Pattern[bytes], expected: str) -> str | None:
    value = lookup(name)
    if value is None:
        return None
    if not pattern.fullmatch(value):
        shown = name.decode()
        raise InvalidValue(f"Expected {expected} in the header '{shown}'.", param=shown)
    return value.decode()
