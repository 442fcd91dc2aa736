"""Who makes a call, read from its metadata: whose it is, and the request's name."""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from ganglion.server.fleet_membership import Leases
from ganglion.server.middleware.keys import KeyRing, bearer_key, invalid_key_error
from ganglion.server.middleware.principal import ANONYMOUS, Principal, principal_of
from ganglion.server.middleware.request_log import request_id_of
from ganglion.wire import headers

REQUEST_ID: Final = headers.REQUEST_ID.decode()
PUBLIC_SERVICES: Final = frozenset({"grpc.health.v1.Health"})
"""Services that answer without a key."""


@dataclass(frozen=True, slots=True)
class RpcCaller:
    """Whose call it is, and the name under which it is logged."""

    visit: Principal
    request_id: str

    @property
    def tenant(self) -> str:
        return self.visit.tenant


CURRENT_CALLER: Final[ContextVar[RpcCaller]] = ContextVar("caller")
"""Written by the guard for the call that it lets in: gRPC hands a method its message and nothing of ours."""

Metadata = Iterable[tuple[str, str | bytes]]


class CallAuthenticator(Protocol):
    """Says whose a call is, and what it is called."""

    def name(self, metadata: Metadata) -> str:
        """The call's name: its own where it may bring one, else a new one."""
        ...

    def caller(self, method: str, metadata: Metadata, request_id: str) -> RpcCaller:
        """Whose call it is; raises InvalidApiKey and LeaseLost for everything that is not public."""
        ...


def metadata_value(metadata: Metadata, name: str) -> bytes | None:
    """The first value under a name."""
    for key, value in metadata:
        if key == name:
            return value.encode() if isinstance(value, str) else value
    return None


class KeyAuthenticator:
    """Judges by the keys that are valid, and the leases that are held, when it is asked."""

    def __init__(self, keys: KeyRing, leases: Leases) -> None:
        self._keys = keys
        self._leases = leases

    def name(self, metadata: Metadata) -> str:
        """The call's name."""
        brought = metadata_value(metadata, REQUEST_ID)
        return request_id_of(brought if brought and self._keys.may_name(_key(metadata)) else None)

    def caller(self, method: str, metadata: Metadata, request_id: str) -> RpcCaller:
        """Whose call it is."""
        return RpcCaller(self._visit(method, metadata), request_id)

    def _visit(self, method: str, metadata: Metadata) -> Principal:
        key = _key(metadata)
        holder = self._keys.holder_of(key)
        if is_public(method):
            return ANONYMOUS if holder is None else Principal(holder.tenant)
        if holder is None:
            raise invalid_key_error(key)
        self._leases.check(metadata_value(metadata, headers.EPOCH.decode()))
        return principal_of(holder, lambda name: metadata_value(metadata, name.decode()))


def _key(metadata: Metadata) -> bytes | None:
    return bearer_key(metadata_value(metadata, "authorization"))


def is_public(method: str) -> bool:
    """Whether a method answers anybody."""
    return method.removeprefix("/").rpartition("/")[0] in PUBLIC_SERVICES
