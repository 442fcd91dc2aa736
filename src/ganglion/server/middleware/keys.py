"""The keys that are valid now, as digests, whose they are and what they may; they can change at any time."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ganglion.core.errors import InvalidApiKey
from ganglion.server.settings import ServerSettings

Role = Literal["user", "admin", "gateway", "anybody"]
"""A user asks models; an admin also changes which models are held; a gateway is an admin who is believed in
what it says of a request; anybody is whoever comes where there are no keys, and may do what an admin may."""

_BEARER = b"bearer "
_TENANT_DIGITS = 16


def bearer_key(authorization: bytes | None) -> bytes | None:
    """The key in the value of an Authorization header, if it brings one."""
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()


def invalid_key_error(key: bytes | None) -> InvalidApiKey:
    """Why somebody with this key is not let in."""
    if key is None:
        return InvalidApiKey("No API key was given.", hint="Send it as 'Authorization: Bearer KEY'.")
    return InvalidApiKey("The API key is not valid here.")


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whoever brings a key."""

    tenant: str = ""
    role: Role = "anybody"
    most_urgent: int = 0
    """The lowest priority that a user's requests may have; the others' are not bounded."""


ANYBODY = KeyHolder()
"""Where there are no keys."""


class KeyRing:
    """Knows a key when it sees one, and never what it was."""

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
        """Whether everybody may come in."""
        return not self._holders

    def replace(
        self, api_keys: Sequence[str], gateway_keys: Sequence[str] = (), admin_keys: Sequence[str] = ()
    ) -> None:
        """From the next request on, these keys are valid and no others.

        A key in several lists is an admin's before a user's, and a gateway's before both.
        """
        by_role: tuple[tuple[Role, Sequence[str]], ...] = (
            ("user", api_keys),
            ("admin", admin_keys),
            ("gateway", gateway_keys),
        )
        self._holders = tuple(
            (digest, KeyHolder(digest.hex()[:_TENANT_DIGITS], role, self._most_urgent))
            for role, keys in by_role
            for digest in map(_digest, keys)
        )

    def holder_of(self, key: bytes | None) -> KeyHolder | None:
        """Whose key it is; None for a key that is not valid, and anybody where there are no keys."""
        if self.is_empty:
            return ANYBODY
        if key is None:
            return None
        presented = hashlib.sha256(key).digest()
        found = None
        for digest, holder in self._holders:  # all of them, so that time says nothing about which
            if hmac.compare_digest(digest, presented):
                found = holder
        return found

    def may_name(self, key: bytes | None) -> bool:
        """Whether the name that a caller gives its request is taken over: a gateway's, or where all may."""
        holder = self.holder_of(key)
        return holder is not None and holder.role in ("gateway", "anybody")


def key_ring(settings: ServerSettings) -> KeyRing:
    """The keys that an operator configured."""
    return KeyRing(
        settings.api_keys, settings.gateway_keys, settings.admin_keys, most_urgent=settings.most_urgent
    )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
