"""API keys, held in memory and read again when the database says that they changed.

Laws: a revocation is in force within a second. Where the database cannot be asked, the keys that were read
last stay in force. Once a key was ever made, every request needs one, even if all of them are revoked.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from ganglion.core.errors import GanglionError, InvalidApiKey
from ganglion.core.request import MOST_URGENT
from ganglion.gateway.access.admission import EVERYBODY, Identity, Role
from ganglion.gateway.access.outage_log import OutageLog
from ganglion.store.access_store import AccessStore, StoredKey

_POLL_S: Final = 0.25
"""A quarter of the second in which a revocation must be in force: a busy machine may miss a turn or two."""
_TENANT_DIGITS: Final = 16
_STATIC_NAME: Final = "static"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _StaticKeys:
    """The keys of the command line and the configuration, which are not in the database."""

    api_keys: tuple[str, ...] = ()
    """Users'."""
    admin_keys: tuple[str, ...] = ()
    most_urgent: int = 0
    """The lowest priority that a user's requests may have."""

    def identities(self) -> Iterator[tuple[bytes, Identity]]:
        """The identity of each key by its digest; a key in both lists is an admin's."""
        for secret in self.api_keys:
            digest = sha256(secret.encode()).digest()
            yield digest, _static_identity(digest, "user", self.most_urgent)
        for secret in self.admin_keys:
            digest = sha256(secret.encode()).digest()
            yield digest, _static_identity(digest, "admin", MOST_URGENT)

    def __bool__(self) -> bool:
        return bool(self.api_keys or self.admin_keys)


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A valid key, and whose it is."""

    identity: Identity
    name: str
    expires_s: float | None = None
    stored: StoredKey | None = None
    """None for a key of the command line or the configuration."""


@dataclass(frozen=True, slots=True)
class _KeyTable:
    """All keys at one moment; replaced as a whole."""

    version: int | None = None
    """None before the database was asked."""
    by_digest: dict[bytes, KnownKey] = field(default_factory=dict)
    by_id: dict[str, KnownKey] = field(default_factory=dict)
    by_secret: dict[bytes, KnownKey] = field(default_factory=dict)
    """Those that were shown: no client's digest is computed twice."""
    is_open: bool = False
    """Whether requests need no key, because none was ever made."""
    stored: tuple[StoredKey, ...] = ()


class ApiKeys:
    """Knows whose a key is. Call `load` before the first lookup, and run `watch` while it is used."""

    def __init__(
        self,
        store: AccessStore,
        static_keys: Sequence[str] = (),
        *,
        admin_keys: Sequence[str] = (),
        most_urgent: int = 0,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[dict[str, KnownKey]], None] = lambda known: None,
    ) -> None:
        self._store = store
        self._static = _StaticKeys(tuple(static_keys), tuple(admin_keys), most_urgent)
        self._clock = clock
        self._on_change = on_change
        self._outage = OutageLog(_logger, "and the keys that are known stay valid")
        self._table = _KeyTable()

    @property
    def is_open(self) -> bool:
        """Whether requests need no key."""
        return self._table.is_open

    def name_of(self, key_id: str) -> str:
        """The name of a key, or its id where nobody named it."""
        known = self._table.by_id.get(key_id)
        return key_id if known is None else known.name

    def models_of(self, key_id: str) -> frozenset[str] | None:
        """The names that a key may ask for; None for all."""
        known = self._table.by_id.get(key_id)
        return None if known is None else known.identity.models

    def identify(self, key: bytes | None) -> Identity:
        """Whose key it is; raises InvalidApiKey."""
        table = self._table
        if table.is_open:
            return EVERYBODY
        if key is None:
            raise InvalidApiKey("No API key was given.", hint="Send it as 'Authorization: Bearer KEY'.")
        known = table.by_secret.get(key)
        if known is None:
            # How long the lookup takes may say how much of a digest matched, and nobody can choose the digest
            # of what they send: that tells nothing of the secret behind it.
            known = table.by_digest.get(sha256(key).digest())
            if known is not None:
                table.by_secret[key] = known
        return self._valid(known)

    def identity(self, key_id: str) -> Identity:
        """Whose key has that id, which was accepted before; raises InvalidApiKey."""
        return EVERYBODY if self._table.is_open else self._valid(self._table.by_id.get(key_id))

    def _valid(self, known: KnownKey | None) -> Identity:
        if known is None:
            raise InvalidApiKey("The API key is not valid here.")
        if known.expires_s is not None and self._clock() >= known.expires_s:
            raise InvalidApiKey(f"The API key {known.identity.key_id} is no longer valid.")
        return known.identity

    @property
    def has_static(self) -> bool:
        """Whether the command line or the configuration names any."""
        return bool(self._static)

    def replace_static(self, static_keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        """From the next request on these are the operator's keys, and no others."""
        self._static = replace(self._static, api_keys=tuple(static_keys), admin_keys=tuple(admin_keys))
        if self._table.version is not None:
            self._table = _key_table(self._table.version, self._static, self._table.stored)

    async def load(self) -> bool:
        """Read the keys from the database if they changed; raises what is wrong with the database."""
        # The number before the keys: what changes between the two reads is seen the next time.
        version = await self._store.keys_version()
        if version == self._table.version:
            return False
        self._table = _key_table(version, self._static, await self._store.keys())
        self._on_change(self._table.by_id)
        return True

    async def watch(self, every_s: float = _POLL_S) -> None:
        """Read the keys again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.load()
            except GanglionError as error:
                self._outage.failed(error)
            else:
                self._outage.worked()


def _key_table(version: int, static_keys: _StaticKeys, stored: tuple[StoredKey, ...]) -> _KeyTable:
    by_digest: dict[bytes, KnownKey] = {}
    for key in stored:
        # Not when it was revoked: whoever did it may have a clock that is ahead of ours.
        expires_s = key.expires_s if key.revoked_s is None else 0.0
        by_digest[key.digest] = KnownKey(_identity_of(key), key.name, expires_s, key)
    for digest, identity in static_keys.identities():
        by_digest[digest] = KnownKey(identity, _STATIC_NAME)
    by_id = {known.identity.key_id: known for known in by_digest.values()}
    return _KeyTable(version, by_digest, by_id, is_open=not by_digest, stored=stored)


def _static_identity(digest: bytes, role: Role, priority: int) -> Identity:
    """An operator's key, with the tenant that a node gives the same key."""
    tenant = digest.hex()[:_TENANT_DIGITS]
    return Identity(tenant, key_id=f"static_{tenant}", role=role, priority=priority)


def _identity_of(key: StoredKey) -> Identity:
    """Whose requests those with this key are."""
    metered = (key.tokens_per_minute, key.budget)
    return Identity(
        tenant=key.tenant,
        key_id=key.id,
        role=key.role,
        models=None if key.models is None else frozenset(key.models),
        priority=key.priority,
        is_limited=any(limit is not None for limit in (key.requests_per_minute, *metered)),
        is_metered=any(limit is not None for limit in metered),
    )
