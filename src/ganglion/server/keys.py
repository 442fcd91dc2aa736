"""The keys that are valid now, as digests, and whose they are; they can change while the server runs."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from ganglion.core.errors import InvalidApiKey

_BEARER = b"bearer "
_TENANT_DIGITS = 16


def bearer_key(authorization: bytes | None) -> bytes | None:
    """The key in the value of an Authorization header, if it brings one."""
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()


def key_refusal(key: bytes | None) -> InvalidApiKey:
    """Why somebody with this key is not let in."""
    if key is None:
        return InvalidApiKey("No API key was given.", hint="Send it as 'Authorization: Bearer KEY'.")
    return InvalidApiKey("The API key is not valid here.")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whoever brings a key."""

    tenant: str = ""
    is_gateway: bool = False
    """Believed in what it says of a request: whose it is, how urgent, under which name."""


ANYBODY = Holder()
"""Where there are no keys."""


class KeyRing:
    """Knows a key when it sees one, and never what it was."""

    def __init__(self, api_keys: Sequence[str], gateway_keys: Sequence[str] = ()) -> None:
        self.replace(api_keys, gateway_keys)

    @property
    def is_empty(self) -> bool:
        """Whether everybody may come in."""
        return not self._holders

    def replace(self, api_keys: Sequence[str], gateway_keys: Sequence[str] = ()) -> None:
        """From the next request on, these keys are valid and no others; one in both is a gateway's."""
        self._holders = tuple(
            (digest, Holder(digest.hex()[:_TENANT_DIGITS], is_gateway))
            for keys, is_gateway in ((api_keys, False), (gateway_keys, True))
            for digest in map(_digest, keys)
        )

    def holder_of(self, key: bytes | None) -> Holder | None:
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
        return self.is_empty or (holder is not None and holder.is_gateway)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
