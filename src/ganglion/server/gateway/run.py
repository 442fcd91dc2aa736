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
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop
from starlette.routing import BaseRoute

from ganglion.core.errors import GanglionError
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.following import Follower
from ganglion.gateway.front import Front, FrontSettings
from ganglion.gateway.gatekeeper import KeyGatekeeper
from ganglion.gateway.gateway_metrics import GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.tracing import tracing_of
from ganglion.server.app_server import BACKLOG
from ganglion.server.bind import InsecureBind, StartRefused, bind, grpc_port_of, url_of
from ganglion.server.drain import Gate
from ganglion.server.gateway.assembly import Assembly, assembled, inherit, prices_of
from ganglion.server.gateway.desk import Page, build_desk
from ganglion.server.gateway.doors import FleetDoors, HealthDoors, nothing_elsewhere
from ganglion.server.gateway.metering import KeyMeter
from ganglion.server.gateway.metrics import FleetMetrics
from ganglion.server.gateway.settings import GatewaySettings
from ganglion.server.gateway.supervisor import supervise
from ganglion.server.gateway.unix_socket import served
from ganglion.server.gateway.worker import LEADER, Colleagues, Worker
from ganglion.server.gateway.worker_channel import Ready, obeying, say
from ganglion.server.gateway.worker_door import WorkerDoor
from ganglion.server.gateway.worker_pages import merged
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
_KNOWN_HOSTS: Final = 256
"""Names by which clients call a gateway: a few, and parsing one costs more than all else about a head."""
FIRST_WORDS_S: Final = 2.0
"""How long a start waits for nodes that do not answer."""
LAST_WORDS_S: Final = 2.0
"""For streams to send why they end, and for connections to close."""
HASTY_WORDS_S: Final = 0.5
"""The same after a second signal."""

OnListening = Callable[[str, str | None], None]
"""Is told the URL, and the address of gRPC where there is one."""


def run(settings: GatewaySettings, on_listening: OnListening | None = None) -> None:
    """Serve until a signal ends it, with as many processes as there shall be; raises StartRefused."""
    if settings.workers > 1:
        supervise(settings, _work, on_listening)
    else:
        _run(serve(settings, on_listening=on_listening))


def _work(settings: GatewaySettings, worker: Worker) -> None:
    """Be one of several workers."""
    _run(
        serve(
            settings,
            on_listening=lambda url, rpc: say(worker.channel, Ready(url, rpc)),
            worker=worker,
        )
    )


def _run(serving: Coroutine[None, None, None]) -> None:
    # A request leaves no cycles, and most of what is alive lives as long as the process: walking all of it
    # every 700 objects, as is the default, cost a twentieth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


async def serve(
    settings: GatewaySettings,
    *,
    shutdown: Shutdown | None = None,
    on_listening: OnListening | None = None,
    worker: Worker | None = None,
) -> None:
    """Serve until `shutdown` is asked for, by us or by a signal; as one of several where `worker` says so."""
    shutdown = shutdown or Shutdown()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(bind(settings.server)) if worker is None else worker.listener
        server = dataclasses.replace(settings.server, port=listener.getsockname()[1])
        gatekeeper = await stack.enter_async_context(_gatekeeper(settings))
        _check_bind(server, gatekeeper)
        state = (
            State() if settings.storage is None else await stack.enter_async_context(opened(settings.storage))
        )
        is_leading = worker is None or worker.is_leader
        parts = assembled(settings, None if worker is None or is_leading else worker.door(LEADER))
        stack.callback(parts.pools.close)
        stack.push_async_callback(parts.loader.close)
        colleagues = None if worker is None else Colleagues(worker, parts.outbound)
        if colleagues is not None and is_leading:
            inherit(parts, await colleagues.legacy())
        gate = Gate(server.max_in_flight)
        metrics, front_metrics = Metrics(), GatewayMetrics()
        relay: RelayDoor | None = None
        if server.has_grpc and is_leading:
            # Named as text: no fork may hold gRPC, and who serves no sessions spares a fifth of the memory.
            relay = import_module("ganglion.server.relay.door").RelayDoor(
                dataclasses.replace(server, grpc_port=grpc_port_of(settings.server, server.port)),
                fleet=parts.fleet,
                chooser=parts.router,
                gatekeeper=gatekeeper,
                loader=parts.loader,
                secret=await _relay_secret(state),
                metrics=metrics,
            )
            stack.push_async_callback(relay.close, HASTY_WORDS_S)
            server = dataclasses.replace(server, grpc_port=relay.address.port)
        fleet_metrics = FleetMetrics(
            front_metrics, parts.fleet if is_leading else None, gatekeeper.usage_counts
        )

        async def own_page() -> bytes:
            return await fleet_metrics.page() + await metrics.page(())

        app = build_desk(
            parts.engine,
            server,
            gate,
            doors=_doors(parts, server, gate, settings, colleagues),
            state=dataclasses.replace(state, meter=KeyMeter(gatekeeper, front_metrics)),
            metrics=metrics,
            page=_page(own_page, colleagues),
            keys=gatekeeper.keys,
        )
        if worker is not None:
            door = WorkerDoor(
                parts.fleet, parts.loader, gate, parts.quarantine, poke=parts.poke, page=own_page
            )
            if is_leading:
                door.spread_poison()
            await stack.enter_async_context(served(door.app(), server, worker.door_path(worker.place)))
            stack.callback(door.close)
        place = _desk_path(stack, worker)
        await stack.enter_async_context(served(app, server, place))
        front = Front(
            _front_settings(settings, server, worker),
            fleet=parts.fleet,
            chooser=parts.router,
            gatekeeper=gatekeeper,
            loader=parts.loader,
            pools=parts.pools,
            desk=NodeSpec("desk", f"unix://{place}"),
            metrics=front_metrics,
            poke=parts.poke,
            admin=None if worker is None or is_leading else worker.leading_desk,
            quarantine=parts.quarantine,
        )
        stack.push_async_callback(front.close)
        stack.enter_context(signals(shutdown) if worker is None else obeying(worker.channel, shutdown))
        await stack.enter_async_context(_running(*parts.works()))
        if is_leading:
            await _first_words(parts.fleet)
        if relay is not None:
            await relay.open()
        if isinstance(parts.loader, Follower):
            await _first_word(parts.loader, shutdown)
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


async def _relay_secret(state: State) -> bytes:
    return secrets.token_bytes(32) if state.store is None else await state.store.secret("relay")


def _desk_path(stack: contextlib.AsyncExitStack, worker: Worker | None) -> Path:
    """Where only this user gets in."""
    if worker is not None:
        return worker.desk_path(worker.place)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ganglion-"))) / "desk"


async def _first_word(follower: Follower, shutdown: Shutdown) -> None:
    """Wait until the leader has said who is there, or nobody needs to know any more."""
    heard = asyncio.create_task(follower.heard())
    leaving = asyncio.create_task(shutdown.drain.wait())
    await first_of(heard, leaving)
    for task in (heard, leaving):
        task.cancel()
    await asyncio.gather(heard, leaving, return_exceptions=True)


def _page(own: Page, colleagues: Colleagues | None) -> Page:
    """What `/metrics` answers: of every worker, where there are several."""
    if colleagues is None:
        return own

    async def every() -> bytes:
        return merged({LEADER: await own(), **await colleagues.pages()})

    return every


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


def _doors(
    parts: Assembly,
    server: ServerSettings,
    gate: Gate,
    settings: GatewaySettings,
    colleagues: Colleagues | None,
) -> list[BaseRoute]:
    promised = frozenset(model.id for model in settings.catalogue.models)
    doors = HealthDoors(parts.fleet, parts.router, gate, promised, time.monotonic()).routes()
    if parts.lead is not None:
        fleet_doors = FleetDoors(
            fleet=parts.fleet,
            chooser=parts.router,
            membership=parts.lead.membership,
            loader=parts.lead.loader,
            poke=parts.poke,
            settings=server,
            promised=promised,
            elsewhere=nothing_elsewhere if colleagues is None else colleagues.in_flight,
        )
        doors += fleet_doors.routes()
    return doors


def _front_settings(
    settings: GatewaySettings, server: ServerSettings, worker: Worker | None
) -> FrontSettings:
    rules = OriginRules(
        is_loopback_bind=is_loopback(server.host),
        allowed_hosts=server.allowed_hosts,
        cors_origins=server.cors_origins,
    )

    known: set[bytes | None] = set()

    def guard(host: bytes | None, origin: bytes | None, is_safe: bool) -> GanglionError | None:
        if origin is None and host in known:
            return None
        refusal = rules.refusal(
            [] if host is None else [host], [] if origin is None else [origin], is_safe=is_safe
        )
        if refusal is None and host is not None and len(known) < _KNOWN_HOSTS:
            known.add(host)
        return refusal

    return FrontSettings(
        max_body_bytes=server.max_body_bytes,
        first_byte_s=settings.first_byte_s,
        idle_s=settings.idle_s,
        stall_s=server.stalled_reader_s,
        guard=guard,
        cors_origins=rules.cors_origins,
        log=settings.request_log,
        is_json_log=settings.is_json_log,
        worker=None if worker is None else worker.place,
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
