"""The caller of a gRPC method, read from its metadata: whose call it is, and its request id."""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from ganglion.server.fleet_membership import Leases
from ganglion.server.middleware.principal import HeaderLookup, KeyRing, Principal, identify, presented_key
from ganglion.server.middleware.request_log import request_id_of
from ganglion.wire import headers

REQUEST_ID: Final = headers.REQUEST_ID.decode()
PUBLIC_SERVICES: Final = frozenset({"grpc.health.v1.Health"})
"""Services that answer without a key."""


@dataclass(frozen=True, slots=True)
class RpcCaller:
    """Whose call it is, and the request id under which it is logged."""

    principal: Principal
    request_id: str

    @property
    def tenant(self) -> str:
        return self.principal.tenant


CURRENT_CALLER: Final[ContextVar[RpcCaller]] = ContextVar("caller")
"""Set by the interceptor for a call that it lets in: gRPC hands a method its message and nothing of ours."""

Metadata = Iterable[tuple[str, str | bytes]]


class CallAuthenticator(Protocol):
    """Says whose a call is, and under which request id it runs."""

    def request_id(self, metadata: Metadata) -> str:
        """The call's own request id where it may bring one, else a new one."""

    def caller(self, method: str, metadata: Metadata, request_id: str) -> RpcCaller:
        """Whose call it is; raises InvalidApiKey and LeaseLost for everything that is not public."""


def metadata_value(metadata: Metadata, name: str) -> bytes | None:
    """The first value under a name."""
    for key, value in metadata:
        if key == name:
            return value.encode() if isinstance(value, str) else value
    return None


class KeyAuthenticator:
    """Identifies callers by the keys that are valid and the leases that are held when they call."""

    def __init__(self, keys: KeyRing, leases: Leases) -> None:
        self._keys = keys
        self._leases = leases

    def request_id(self, metadata: Metadata) -> str:
        """The call's request id."""
        brought = metadata_value(metadata, REQUEST_ID)
        return request_id_of(
            brought if brought and self._keys.may_set_request_id(bearer_key(metadata)) else None
        )

    def caller(self, method: str, metadata: Metadata, request_id: str) -> RpcCaller:
        """Whose call it is."""
        is_public = is_public_method(method)
        principal = identify(
            self._keys,
            self._leases,
            _lookup(metadata),
            is_public=is_public,
            is_work=not is_public,
            has_key_header=False,
        )
        return RpcCaller(principal, request_id)


def bearer_key(metadata: Metadata) -> bytes | None:
    """The key that a call brings."""
    return presented_key(_lookup(metadata), has_key_header=False)


def _lookup(metadata: Metadata) -> HeaderLookup:
    return lambda name: metadata_value(metadata, name.decode())


def is_public_method(method: str) -> bool:
    """Whether a method answers without a key."""
    return method.removeprefix("/").rpartition("/")[0] in PUBLIC_SERVICES
