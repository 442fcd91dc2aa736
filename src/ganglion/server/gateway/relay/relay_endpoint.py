"""The gRPC endpoint of a gateway: the relay behind the listener and the interceptor that a node has.

Law: at shutdown new calls are refused, those that run have their grace, and only then the channels to the
nodes are closed.
"""

import asyncio
from contextlib import suppress
from typing import Final

from google.protobuf.descriptor import MethodDescriptor

from ganglion.gateway.access.admission import Gatekeeper
from ganglion.gateway.failover import ProbeNow
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.routing.decision import Chooser, ModelLoader
from ganglion.server.gate import Gate
from ganglion.server.gateway.relay.channels import NodeChannels
from ganglion.server.gateway.relay.relay_caller import RELAY_CALLER, GatekeeperAuthorizer
from ganglion.server.gateway.relay.relay_calls import RelayCall, RelayNodes
from ganglion.server.gateway.relay.relay_service import RelayService
from ganglion.server.gateway.relay.session_handles import SessionHandles
from ganglion.server.grpc.handlers import gated_behaviours, generic_handler
from ganglion.server.grpc.interceptor import CallInterceptor, Context
from ganglion.server.grpc.listener import GrpcListener, ListenAddress
from ganglion.server.prometheus import Metrics
from ganglion.server.settings import ServerSettings
from ganglion.wire.salience.service import SERVICE

_LAST_ANSWERS_S: Final = 2.0
"""For calls that outlast the grace to hear why they end."""


class RelayEndpoint:
    """Binds its port when it is made; relays once it is opened; closed, every call has ended.

    `secret` signs session ids: the same one for every gateway of a fleet, and after each restart.
    `authorities` are the CA certificates, in PEM, for nodes with TLS; None for the system's.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        fleet: Fleet,
        chooser: Chooser,
        gatekeeper: Gatekeeper,
        loader: ModelLoader,
        secret: bytes,
        metrics: Metrics | None = None,
        probe_now: ProbeNow = lambda name: None,
        authorities: bytes | None = None,
    ) -> None:
        self._fleet = fleet
        self._gate = Gate(settings.max_in_flight)
        self._channels = NodeChannels(fleet, authorities)
        nodes = RelayNodes(fleet, chooser, loader, self._channels, probe_now)
        self._service = RelayService(fleet, nodes, gatekeeper, SessionHandles(secret))
        self._listener = GrpcListener(
            settings, CallInterceptor(GatekeeperAuthorizer(gatekeeper), settings, metrics or Metrics())
        )

    @property
    def address(self) -> ListenAddress:
        """Where it listens."""
        return self._listener.address

    async def open(self) -> None:
        """Begin to relay calls."""
        salience = generic_handler(
            SERVICE, gated_behaviours(self._service.methods, self._gate, _call_of), gives_bytes=True
        )
        await self._listener.start(salience, self._is_serving)

    def drain(self) -> None:
        """Refuse new calls from now on; what runs goes on."""
        self._gate.drain()

    async def close(self, grace_s: float) -> None:
        """Refuse new calls, let what runs go on for so long, end the rest, and close the channels."""
        self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._gate.idle()
        await self._listener.end(_LAST_ANSWERS_S)
        await self._channels.close()
        await self._listener.stop()

    def _is_serving(self) -> bool:
        return not self._gate.is_draining and any(view.takes_work for view in self._fleet.nodes.values())


def _call_of(method: MethodDescriptor, context: Context) -> RelayCall:
    return RelayCall(method.name, RELAY_CALLER.get(), context.time_remaining())
