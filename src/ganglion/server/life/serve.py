"""A node's server from start to end: bind, listen while the engine opens, answer, drain, close.

Law: whatever ends it, the engine is closed before the process leaves, and work that was let in is finished
or ends with an error. The first signal drains; the second does not wait.
"""

import asyncio
import contextlib
import dataclasses
import logging
import socket
from collections.abc import Callable
from functools import partial

from msgspec import structs

from ganglion.core.engine import ManagedEngine
from ganglion.core.machine import MachineSource
from ganglion.gateway.proxy.descriptors import DescriptorWatch
from ganglion.server.app import build_node
from ganglion.server.bind import bind, check_bind, grpc_port_of, url_of
from ganglion.server.fleet_membership import FleetMembership, Leases
from ganglion.server.gate import Gate
from ganglion.server.grpc.grpc_server import GrpcServer
from ganglion.server.images.outbound import Outbound
from ganglion.server.life.app_server import AppServer, until_listening, uvicorn_config
from ganglion.server.life.joining import check_join, joined_gateways
from ganglion.server.life.signals import (
    ApplyConfig,
    Shutdown,
    check_keys_remain,
    config_reloader,
    first_of,
    on_hangup,
    on_termination,
)
from ganglion.server.life.storage import StoreTarget, open_store
from ganglion.server.middleware.principal import KeyRing, key_ring
from ganglion.server.prometheus import Metrics
from ganglion.server.settings import NO_GATEWAYS, JoinSettings, ServerSettings
from ganglion.server.state import AppState
from ganglion.sessions.settings import SessionSettings

_logger = logging.getLogger("ganglion.server")

_ENGINE_CLOSE_S = 10.0
"""An engine that takes longer to close is left to the operating system."""
_FLUSH_S = 2.0
"""For streams to send why they end, and for connections to close."""
_HASTY_FLUSH_S = 0.5
"""The same after a second signal."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reloaded:
    """A configuration that was reloaded and found valid."""

    api_keys: tuple[str, ...]
    apply: Callable[[], None]
    """Puts everything but the keys into force; called on the event loop, and does not fail."""
    gateway_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()

    @property
    def has_keys(self) -> bool:
        """Whether callers need one."""
        return bool(self.api_keys or self.admin_keys or self.gateway_keys)


_Reload = Callable[[], Reloaded]
"""Reads the configuration again, off the event loop; raises what is wrong with it."""


async def serve(
    engine: ManagedEngine,
    settings: ServerSettings,
    *,
    shutdown: Shutdown | None = None,
    on_listening: Callable[[str], None] | None = None,
    reload: _Reload | None = None,
    machine: MachineSource | None = None,
    storage: StoreTarget | None = None,
    sessions: SessionSettings | None = None,
    on_rpc: Callable[[str], None] | None = None,
    join: JoinSettings = NO_GATEWAYS,
    opening: asyncio.Task[None] | None = None,
    listener: socket.socket | None = None,
    outbound: Outbound | None = None,
) -> None:
    """Serve until `shutdown` is asked for, by us or by a signal.

    `on_listening` is called with the URL, and before it `on_rpc` with the address of gRPC, where there is
    one. `opening` is the engine's, where that began before, and `listener` a socket that was bound before.
    `outbound` fetches images; left out, as the settings say.
    Raises StartRefused, or what kept the engine from opening.
    """
    shutdown = shutdown or Shutdown()
    gate = Gate(settings.max_in_flight)
    keys = key_ring(settings)
    metrics = Metrics()
    membership = FleetMembership(leases=Leases(is_joining=bool(join.urls)))
    async with contextlib.AsyncExitStack() as stack:
        if opening is not None:
            stack.push_async_callback(_close_engine, engine, opening)
        check_bind(settings)
        check_join(join, settings)
        listener = stack.enter_context(listener or bind(settings))
        settings = _with_ports(settings, listener)
        rpc = None
        if settings.has_grpc:
            rpc = GrpcServer(settings, gate, keys, metrics, membership.leases)
            stack.push_async_callback(rpc.close, _HASTY_FLUSH_S)
            settings = structs.replace(settings, grpc_port=rpc.address.port)
        state = AppState() if storage is None else await stack.enter_async_context(open_store(storage))
        app = build_node(
            engine,
            settings,
            gate,
            keys,
            machine=machine,
            state=state,
            metrics=metrics,
            membership=membership,
            outbound=outbound,
        )
        server = AppServer(uvicorn_config(app, settings), DescriptorWatch())
        stack.enter_context(on_termination(shutdown))
        if reload is not None:
            ask = stack.enter_context(config_reloader(partial(_read_reloaded, reload, keys)))
            stack.enter_context(on_hangup(ask))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        opening = opening or asyncio.create_task(engine.open())
        try:
            if rpc is not None:
                await rpc.open(engine, sessions)
                if on_rpc is not None:
                    on_rpc(str(rpc.address))
            await until_listening(server, serving)
            if on_listening is not None:
                on_listening(url_of(listener, settings))
            gateways = await stack.enter_async_context(
                joined_gateways(join, settings, url_of(listener, settings), membership)
            )
            await _until_ended(shutdown, serving, opening)
            # First: what gateways send before they know of it is still answered.
            await gateways.leave(shutdown.stop)
            await _drain(gate, shutdown, settings.drain_timeout_s)
        finally:
            async with contextlib.AsyncExitStack() as last:
                last.push_async_callback(_stop_server, server, serving, gate, shutdown)
                last.push_async_callback(_close_engine, engine, opening)
                if rpc is not None:
                    await rpc.close(_HASTY_FLUSH_S if shutdown.stop.is_set() else _FLUSH_S)
    serving.result()
    if not opening.cancelled():
        opening.result()


def _with_ports(settings: ServerSettings, listener: socket.socket) -> ServerSettings:
    """The settings with the ports in use: HTTP's own, and the one that gRPC is to take."""
    port = listener.getsockname()[1]
    return structs.replace(settings, port=port, grpc_port=grpc_port_of(settings, port))


def _read_reloaded(reload: _Reload, keys: KeyRing) -> ApplyConfig:
    fresh = reload()
    check_keys_remain(is_keyed=not keys.is_empty, would_be_keyed=fresh.has_keys)

    def apply() -> None:
        keys.replace(fresh.api_keys, fresh.gateway_keys, fresh.admin_keys)
        fresh.apply()

    return apply


async def _until_ended(shutdown: Shutdown, serving: asyncio.Task[None], opening: asyncio.Task[None]) -> None:
    """Wait for a reason to shut down: somebody asks, the server ends, or the engine cannot open."""
    draining = asyncio.create_task(shutdown.drain.wait())
    await first_of(draining, serving, opening)
    if opening.done() and opening.exception() is None:
        await first_of(draining, serving)
    draining.cancel()


async def _drain(gate: Gate, shutdown: Shutdown, timeout_s: float) -> None:
    gate.drain()
    _logger.info("draining; %d requests in flight", gate.in_flight)
    idle = asyncio.create_task(gate.idle())
    stopped = asyncio.create_task(shutdown.stop.wait())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await first_of(idle, stopped)
    idle.cancel()
    stopped.cancel()


async def _close_engine(engine: ManagedEngine, opening: asyncio.Task[None]) -> None:
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    try:
        async with asyncio.timeout(_ENGINE_CLOSE_S):
            await engine.close()
    except TimeoutError:
        _logger.error("the engine did not close within %g s", _ENGINE_CLOSE_S)


async def _stop_server(
    server: AppServer, serving: asyncio.Task[None], gate: Gate, shutdown: Shutdown
) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HASTY_FLUSH_S if shutdown.stop.is_set() else _FLUSH_S):
            await gate.idle()
    server.leave(is_hasty=shutdown.stop.is_set())
    await asyncio.gather(serving, return_exceptions=True)
