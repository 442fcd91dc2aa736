"""The gRPC listener: the port beside HTTP's, with the same certificate and the same keys.

Law: the port is taken before anything is loaded, and a port that is not free is never exchanged for another
behind the operator's back.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from msgspec import structs

from ganglion.core.errors import InvalidRequest, Overloaded
from ganglion.server.bind import BindFailed, UnusableCertificate, bind
from ganglion.server.grpc.handlers import MethodBehaviour, generic_handler
from ganglion.server.grpc.interceptor import CallInterceptor
from ganglion.server.grpc.message_limits import LARGEST_BYTES
from ganglion.server.settings import ServerSettings
from ganglion.wire.salience.service import SERVICE

HEALTH: Final[ServiceDescriptor] = health_pb2.DESCRIPTOR.services_by_name["Health"]
_WATCH_S: Final = 0.5
"""How soon a watcher sees a change."""
_MAX_WATCHERS: Final = 256
"""They need no key, and stay as long as they like."""


class _NoSuchService(InvalidRequest, code="not_found", grpc="NOT_FOUND"):
    """A health check named a service that does not exist."""


class _HealthService:
    """Answers for the whole server, under the empty name, and for each service."""

    def __init__(self, services: tuple[str, ...], is_serving: Callable[[], bool]) -> None:
        self._services = ("", *services)
        self._is_serving = is_serving
        self._watchers = 0
        self.behaviours: dict[str, MethodBehaviour] = {
            "Check": self._check,
            "List": self._list,
            "Watch": self._watch,
        }

    async def _check(
        self, message: health_pb2.HealthCheckRequest, _: object
    ) -> health_pb2.HealthCheckResponse:
        if message.service not in self._services:
            raise _NoSuchService(f"There is no service {message.service[:200]!r} here.", param="service")
        return self._response()

    async def _list(self, _: health_pb2.HealthListRequest, __: object) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(statuses={name: self._response() for name in self._services})

    async def _watch(
        self, message: health_pb2.HealthCheckRequest, _: object
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        if self._watchers >= _MAX_WATCHERS:
            raise Overloaded(f"{_MAX_WATCHERS} clients are already watching this server.", hint="Use Check.")
        self._watchers += 1
        sent = None
        try:
            while True:
                now = self._response(is_known=message.service in self._services)
                if now != sent:
                    yield now
                    sent = now
                await asyncio.sleep(_WATCH_S)
        finally:
            self._watchers -= 1

    def _response(self, *, is_known: bool = True) -> health_pb2.HealthCheckResponse:
        kinds = health_pb2.HealthCheckResponse
        if not is_known:
            return kinds(status=kinds.SERVICE_UNKNOWN)
        return kinds(status=kinds.SERVING if self._is_serving() else kinds.NOT_SERVING)


_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LARGEST_BYTES),
    # Of a message that is not read yet, no more is buffered; else gRPC learns to buffer megabytes.
    ("grpc.http2.lookahead_bytes", 64 * 2**10),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_metadata_size", 16 * 2**10),
    ("grpc.absolute_max_metadata_size", 32 * 2**10),
    ("grpc.max_concurrent_streams", 4096),  # of one connection: a client shares one among its sessions
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # A client that vanished is detected by a ping; one that pings too often is disconnected.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)

_GRACE_S: Final = 0.2
REFLECTION: Final = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address at which a client on this machine reaches the listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class GrpcListener:
    """The gRPC server of a process: bound when it is made, answering once it is started."""

    def __init__(self, settings: ServerSettings, interceptor: CallInterceptor) -> None:
        self._interceptor = interceptor
        # Beyond the gate's limit a call is refused; this one bounds those that have not sent their message.
        # Unless it is asked for: a second server would share the port by accident and get half of the calls.
        sharing = ("grpc.so_reuseport", int(settings.has_reuse_port))
        self._server = grpc.aio.server(
            interceptors=(self._interceptor,),
            options=(sharing, *_OPTIONS),
            maximum_concurrent_rpcs=2 * settings.max_in_flight,
        )
        self.address = _listen(self._server, settings)

    async def start(self, salience: grpc.GenericRpcHandler, is_serving: Callable[[], bool]) -> None:
        """Answer the calls of `salience.v1`, and those of health and reflection."""
        health = _HealthService((SERVICE.full_name,), is_serving)
        self._server.add_generic_rpc_handlers((salience, generic_handler(HEALTH, health.behaviours)))
        names = (SERVICE.full_name, HEALTH.full_name, REFLECTION.full_name)
        reflection.enable_server_reflection(names, self._server)
        await self._server.start()

    async def end(self, within_s: float) -> None:
        """End every call with UNAVAILABLE, and those that still come."""
        await self._interceptor.end(within_s)

    async def stop(self) -> None:
        """Release the port; connections are closed in good order, as far as that takes no time."""
        await self._server.stop(_GRACE_S)


def _listen(server: grpc.aio.Server, settings: ServerSettings) -> ListenAddress:
    # gRPC says little about why it cannot bind a port, and resolves names in its own way.
    wanted = settings.grpc_port or 0
    try:
        with bind(structs.replace(settings, port=wanted)) as probe:
            host = probe.getsockname()[0]
    except BindFailed as error:
        raise _bind_failed(error.message) from None
    try:
        port = _add_port(server, str(ListenAddress(host, wanted)), settings)
    except RuntimeError:
        raise _bind_failed(f"Cannot listen on {ListenAddress(host, wanted)} for gRPC.") from None
    return ListenAddress(host, port)


def _add_port(server: grpc.aio.Server, address: str, settings: ServerSettings) -> int:
    if settings.tls_cert is None or settings.tls_key is None:
        return server.add_insecure_port(address)
    try:
        key, certificate = Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes()
    except OSError as error:
        raise UnusableCertificate(error) from None
    return server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))


def _bind_failed(message: str) -> BindFailed:
    return BindFailed(
        message, hint="Choose another port for gRPC with --grpc-port, or switch it off with --no-grpc."
    )
