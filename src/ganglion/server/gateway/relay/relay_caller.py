"""The caller of a relayed gRPC call, as the gatekeeper knows it, and the metadata that its node gets."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from ganglion.core.errors import InvalidApiKey
from ganglion.gateway.access.admission import Gatekeeper, Identity, require_role
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.node_headers import identity_headers, key_headers, lease_headers
from ganglion.server.grpc.caller import (
    REQUEST_ID,
    Metadata,
    RpcCaller,
    bearer_key,
    is_public_method,
    metadata_value,
)
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.request_log import request_id_of

_TRACES: Final = ("traceparent", "tracestate")
_MAX_TRACE: Final = 512
_ANYBODY: Final = Identity("")


@dataclass(frozen=True, slots=True)
class RelayCaller:
    """Whose call it is, its request id, and its trace context."""

    identity: Identity
    request_id: str
    traces: tuple[tuple[str, str], ...] = ()

    @property
    def tenant(self) -> str:
        """The tenant whose sessions it sees."""
        return self.identity.tenant

    def metadata_for(self, spec: NodeSpec) -> tuple[tuple[str, str], ...]:
        """What goes with a call to a node: its own key, and nothing else that the client sent."""
        identity = identity_headers(
            tenant=self.tenant or None, key_id=self.identity.key_id or None, request_id=self.request_id
        )
        headers = (*identity, *key_headers(spec), *lease_headers(spec))
        return (*((name.decode(), value.decode()) for name, value in headers), *self.traces)


RELAY_CALLER: Final[ContextVar[RelayCaller]] = ContextVar("relay_caller")
"""Set by the authorizer for each call that it lets in."""


class GatekeeperAuthorizer:
    """Authorizes each call by its key, as the gatekeeper knows it now."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    def request_id(self, metadata: Metadata) -> str:
        """The call's request id: the client's own where it is a valid one."""
        return request_id_of(metadata_value(metadata, REQUEST_ID))

    def caller(self, method: str, metadata: Metadata, request_id: str) -> RpcCaller:
        """Whose call it is."""
        metadata = tuple(metadata)
        try:
            identity = self._gatekeeper.identify(bearer_key(metadata))
        except InvalidApiKey:
            if not is_public_method(method):
                raise
            identity = _ANYBODY
        if not is_public_method(method):
            require_role(identity, "user")
        RELAY_CALLER.set(RelayCaller(identity, request_id, _traces(metadata)))
        return RpcCaller(Principal(identity.tenant), request_id)


def _traces(metadata: Metadata) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value)
        for name, value in metadata
        if name in _TRACES and isinstance(value, str) and len(value) <= _MAX_TRACE
    )
