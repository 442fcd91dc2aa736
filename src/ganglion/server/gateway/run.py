"""A gateway's life: bind, learn who is there, answer, drain, close.

Law: work that was let in is finished or told why not, and what it came to is written down before the process
leaves. The first signal drains; the second does not wait.
"""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import secrets
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop
from starlette.types import ASGIApp

from ganglion.core.errors import GanglionError
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.front import Front, FrontSettings
from ganglion.gateway.gatekeeper import KeyGatekeeper
from ganglion.gateway.gateway_metrics import GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.tracing import tracing_of
from ganglion.server.app_server import BACKLOG, AppServer, app_config, until_listening
from ganglion.server.bind import InsecureBind, StartRefused, bind, grpc_port_of, url_of
from ganglion.server.drain import Gate
from ganglion.server.gateway.assembly import Assembly, assembled, prices_of
from ganglion.server.gateway.desk import build_desk
from ganglion.server.gateway.doors import FleetDoors
from ganglion.server.gateway.metrics import FleetMetrics
from ganglion.server.gateway.settings import GatewaySettings
from ganglion.server.metrics import Metrics
from ganglion.server.origin import OriginRules, is_loopback
from ganglion.server.settings import ServerSettings
from ganglion.server.shutdown import Shutdown, first_of, signals
from ganglion.server.state import State
from ganglion.server.storage import opened
from ganglion.store.opening import MEMORY, open_access

if TYPE_CHECKING:
    from ganglion.server.relay.door import RelayDoor

logger = logging.getLogger("ganglion.gateway")

COLLECTING: Final = (20_000, 20, 50)
FIRST_WORDS_S: Final = 2.0
"""How long a start waits for nodes that do not answer."""
LAST_WORDS_S: Final = 2.0
"""For streams to send why they end, and for connections to close."""
HASTY_WORDS_S: Final = 0.5
"""The same after a second signal."""

OnListening = Callable[[str, str | None], None]
"""Is told the URL, and the address of gRPC where there is one."""


def run(settings: GatewaySettings, on_listening: OnListening | None = None) -> None:
    """Serve until a signal ends it; raises StartRefused."""
    # A request leaves no cycles, and most of what is alive lives as long as the process: walking all of it
    # every 700 objects, as is the default, cost a twentieth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, on_listening=on_listening))


async def serve(
    settings: GatewaySettings,
    *,
    shutdown: Shutdown | None = None,
    on_listening: OnListening | None = None,
) -> None:
    """Serve until `shutdown` is asked for, by us or by a signal."""
    shutdown = shutdown or Shutdown()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(bind(settings.server))
        port = listener.getsockname()[1]
        server = dataclasses.replace(
            settings.server, port=port, grpc_port=grpc_port_of(settings.server, port)
        )
        gatekeeper = await stack.enter_async_context(_gatekeeper(settings))
        _check_bind(server, gatekeeper)
        state = (
            State() if settings.storage is None else await stack.enter_async_context(opened(settings.storage))
        )
        parts = assembled(settings)
        stack.callback(parts.pools.close)
        stack.push_async_callback(parts.loader.close)
        gate = Gate(server.max_in_flight)
        metrics, front_metrics = Metrics(), GatewayMetrics()
        relay: RelayDoor | None = None
        if server.has_grpc:
            secret = secrets.token_bytes(32) if state.store is None else await state.store.secret("relay")
            # Named as text: a gateway without sessions spares itself gRPC, a fifth of its memory.
            relay = import_module("ganglion.server.relay.door").RelayDoor(
                server,
                fleet=parts.fleet,
                chooser=parts.router,
                gatekeeper=gatekeeper,
                loader=parts.loader,
                secret=secret,
                metrics=metrics,
            )
            stack.push_async_callback(relay.close, HASTY_WORDS_S)
            server = dataclasses.replace(server, grpc_port=relay.address.port)
        app = build_desk(
            parts.engine,
            server,
            gate,
            doors=_doors(parts, server, gate, settings),
            state=state,
            metrics=metrics,
            fleet_metrics=FleetMetrics(front_metrics, parts.fleet, gatekeeper.usage_counts),
            keys=gatekeeper.keys,
        )
        desk = await stack.enter_async_context(_desk(app, server))
        front = Front(
            _front_settings(settings, server),
            fleet=parts.fleet,
            chooser=parts.router,
            gatekeeper=gatekeeper,
            loader=parts.loader,
            pools=parts.pools,
            desk=desk,
            metrics=front_metrics,
            poke=parts.poller.poke,
        )
        stack.push_async_callback(front.close)
        stack.enter_context(signals(shutdown))
        await stack.enter_async_context(
            _running(parts.poller.run(), parts.membership.keep_expiring(), parts.scaler.run())
        )
        await _first_words(parts.fleet)
        if relay is not None:
            await relay.open()
        doorway = await asyncio.get_running_loop().create_server(
            front.connection, sock=listener, ssl=_tls(server), backlog=BACKLOG
        )
        stack.callback(doorway.close)
        if on_listening is not None:
            on_listening(url_of(listener, server), None if relay is None else str(relay.address))
        await shutdown.drain.wait()
        await _drain(front, relay, gate, shutdown, server.drain_timeout_s)


async def _first_words(fleet: Fleet) -> None:
    """Wait a moment until each declared node was asked once, so that no model is unknown for want of it."""
    news = asyncio.Event()
    deafen = fleet.listen(news.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORDS_S):
                while any(view.heard_s is None and not view.failures for view in fleet.nodes.values()):
                    news.clear()
                    await news.wait()
    finally:
        deafen()


@contextlib.asynccontextmanager
async def _gatekeeper(settings: GatewaySettings) -> AsyncGenerator[KeyGatekeeper, None]:
    access = await open_access(MEMORY if settings.storage is None else settings.storage.place)
    try:
        gatekeeper = KeyGatekeeper(access, settings.server.api_keys, prices_of(settings.catalogue))
        await gatekeeper.start()
        try:
            yield gatekeeper
        finally:
            await gatekeeper.close()
    finally:
        await access.close()


def _check_bind(server: ServerSettings, gatekeeper: KeyGatekeeper) -> None:
    if gatekeeper.keys.is_open and not is_loopback(server.host):
        raise InsecureBind(
            f"{server.host} can be reached from other machines and there is no key.",
            hint="Make one with ganglion keys create, set one with --api-key, or bind 127.0.0.1.",
        )


def _doors(parts: Assembly, server: ServerSettings, gate: Gate, settings: GatewaySettings) -> FleetDoors:
    promised = frozenset(model.id for model in settings.catalogue.models)
    return FleetDoors(
        fleet=parts.fleet,
        chooser=parts.router,
        membership=parts.membership,
        loader=parts.loader,
        poke=parts.poller.poke,
        settings=server,
        gate=gate,
        promised=lambda: promised,
        began_s=time.monotonic(),
    )


def _front_settings(settings: GatewaySettings, server: ServerSettings) -> FrontSettings:
    rules = OriginRules(
        is_loopback_bind=is_loopback(server.host),
        allowed_hosts=server.allowed_hosts,
        cors_origins=server.cors_origins,
    )

    def guard(host: bytes | None, origin: bytes | None, is_safe: bool) -> GanglionError | None:
        return rules.refusal(
            [] if host is None else [host], [] if origin is None else [origin], is_safe=is_safe
        )

    return FrontSettings(
        max_body_bytes=server.max_body_bytes,
        first_byte_s=settings.first_byte_s,
        idle_s=settings.idle_s,
        stall_s=server.stalled_reader_s,
        guard=guard,
        cors_origins=rules.cors_origins,
        log=settings.request_log,
        is_json_log=settings.is_json_log,
        tracing=tracing_of(is_asked=settings.has_tracing),
    )


def _tls(server: ServerSettings) -> ssl.SSLContext | None:
    if server.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(server.tls_cert, server.tls_key)
    except OSError as error:
        raise StartRefused(
            f"The TLS certificate cannot be used: {error}.", hint="Check --tls-cert and --tls-key."
        ) from None
    return context


@contextlib.asynccontextmanager
async def _desk(app: ASGIApp, server: ServerSettings) -> AsyncGenerator[NodeSpec, None]:
    """The desk on a socket that only this user reaches."""
    with tempfile.TemporaryDirectory(prefix="ganglion-") as folder:
        place = Path(folder) / "desk"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            plain = dataclasses.replace(server, tls_cert=None, tls_key=None)
            app_server = AppServer(app_config(app, plain))
            serving = asyncio.create_task(app_server.serve(sockets=[listener]))
            try:
                await until_listening(app_server, serving)
                yield NodeSpec("desk", f"unix://{place}")
            finally:
                app_server.should_exit = True
                app_server.force_exit = True
                await asyncio.gather(serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def _running(*works: Coroutine[None, None, None]) -> AsyncGenerator[None, None]:
    """While inside, these go on."""
    tasks = [asyncio.create_task(_outlasting(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outlasting(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except Exception:
        logger.exception("a part of the gateway ended")
        raise


async def _drain(
    front: Front, relay: "RelayDoor | None", gate: Gate, shutdown: Shutdown, timeout_s: float
) -> None:
    front.drain()
    gate.drain()
    if relay is not None:
        relay.drain()
    logger.info("draining, %d in flight", front.in_flight)
    closing = [asyncio.create_task(front.idle()), asyncio.create_task(gate.idle())]
    if relay is not None:
        closing.append(asyncio.create_task(relay.close(timeout_s)))
    idle = asyncio.create_task(_all(closing))
    stopped = asyncio.create_task(shutdown.stop.wait())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await first_of(idle, stopped)
    for task in (idle, stopped, *closing):
        task.cancel()
    await asyncio.gather(idle, stopped, *closing, return_exceptions=True)


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
