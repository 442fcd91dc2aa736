"""Who makes a call, read from its metadata: whose it is, and the request's name."""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from ganglion.gateway import trusted
from ganglion.server.keys import KeyRing, bearer_key, key_refusal
from ganglion.server.leases import Leases
from ganglion.server.request_log import request_id_of
from ganglion.server.visit import NOBODY, Visit, visit_of

REQUEST_ID: Final = trusted.REQUEST_ID.decode()
PUBLIC: Final = frozenset({"grpc.health.v1.Health"})
"""Services that answer without a key."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call it is, and the name under which it is logged."""

    visit: Visit
    request_id: str

    @property
    def tenant(self) -> str:
        return self.visit.tenant


CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
"""Written by the guard for the call that it lets in: gRPC hands a method its message and nothing of ours."""

Metadata = Iterable[tuple[str, str | bytes]]


class Judge(Protocol):
    """Says whose a call is, and what it is called."""

    def name(self, metadata: Metadata) -> str:
        """The call's name: its own where it may bring one, else a new one."""
        ...

    def caller(self, method: str, metadata: Metadata, request_id: str) -> Caller:
        """Whose call it is; raises InvalidApiKey and LeaseLost for everything that is not public."""
        ...


def value_of(metadata: Metadata, name: str) -> bytes | None:
    """The first value under a name."""
    for key, value in metadata:
        if key == name:
            return value.encode() if isinstance(value, str) else value
    return None


class KeyJudge:
    """Judges by the keys that are valid, and the leases that are held, when it is asked."""

    def __init__(self, keys: KeyRing, leases: Leases) -> None:
        self._keys = keys
        self._leases = leases

    def name(self, metadata: Metadata) -> str:
        """The call's name."""
        brought = value_of(metadata, REQUEST_ID)
        return request_id_of(brought if brought and self._keys.may_name(_key(metadata)) else None)

    def caller(self, method: str, metadata: Metadata, request_id: str) -> Caller:
        """Whose call it is."""
        return Caller(self._visit(method, metadata), request_id)

    def _visit(self, method: str, metadata: Metadata) -> Visit:
        key = _key(metadata)
        holder = self._keys.holder_of(key)
        if is_public(method):
            return NOBODY if holder is None else Visit(holder.tenant)
        if holder is None:
            raise key_refusal(key)
        self._leases.check(value_of(metadata, trusted.EPOCH.decode()))
        return visit_of(holder, lambda name: value_of(metadata, name.decode()))


def _key(metadata: Metadata) -> bytes | None:
    return bearer_key(value_of(metadata, "authorization"))


def is_public(method: str) -> bool:
    """Whether a method answers anybody."""
    return method.removeprefix("/").rpartition("/")[0] in PUBLIC
