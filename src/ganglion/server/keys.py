"""The keys that are valid now, as digests, and whose they are; they can change while the server runs."""

import hashlib
import hmac
from collections.abc import Sequence

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


class KeyRing:
    """Knows a key when it sees one, and never what it was."""

    def __init__(self, api_keys: Sequence[str]) -> None:
        self.replace(api_keys)

    @property
    def is_empty(self) -> bool:
        """Whether everybody may come in."""
        return not self._digests

    def replace(self, api_keys: Sequence[str]) -> None:
        """From the next request on, these keys are valid and no others."""
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in api_keys)

    def match(self, key: bytes) -> bytes | None:
        """The digest of a valid key, None for any other."""
        presented = hashlib.sha256(key).digest()
        found = None
        for digest in self._digests:  # all of them, so that time says nothing about which
            if hmac.compare_digest(digest, presented):
                found = digest
        return found

    def tenant_of(self, key: bytes | None) -> str | None:
        """Whose key it is; None for a key that is not valid, and "" for everybody where there are no keys."""
        if self.is_empty:
            return ""
        digest = None if key is None else self.match(key)
        return None if digest is None else digest.hex()[:_TENANT_DIGITS]
