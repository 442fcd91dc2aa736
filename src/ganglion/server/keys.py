"""The keys that are valid now, as digests; they can change while the server runs."""

import hashlib
import hmac
from collections.abc import Sequence


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
