"""The life of a gateway's process: bind, probe the nodes, answer, drain, close.

Law: requests that were admitted are finished or end with an error that says why, and their usage is written
before the process ends. The first signal drains; the second does not wait.
"""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop
from msgspec import structs

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.proxy.listener import ProxyListener
from ganglion.server.bind import UnusableCertificate, bind, url_of
from ganglion.server.gate import Gate
from ganglion.server.gateway.gateway_process import build_gateway
from ganglion.server.gateway.setup import GatewaySetup, Reload
from ganglion.server.life.app_server import BACKLOG
from ganglion.server.life.signals import Shutdown, config_reloader, first_of, on_hangup, on_termination
from ganglion.server.settings import ServerSettings

if TYPE_CHECKING:
    from ganglion.server.gateway.relay.relay_endpoint import RelayEndpoint

_logger = logging.getLogger("ganglion.gateway")

_COLLECTING: Final = (20_000, 20, 50)
_FIRST_PROBES_S: Final = 2.0
"""How long the start waits for nodes that do not answer."""
_HASTY_CLOSE_S: Final = 0.5
"""For sessions that still run when everything else has ended."""

_OnListening = Callable[[str, str | None], None]
"""Called with the URL, and the address of gRPC where there is one."""


def run_gateway(
    settings: GatewaySetup, on_listening: _OnListening | None = None, reload: Reload | None = None
) -> None:
    """Serve until a signal ends it; raises StartRefused."""
    # A request leaves no cycles, and most of what is alive lives as long as the process: walking all of it
    # every 700 objects, as is the default, cost a twentieth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_gateway(settings, on_listening=on_listening, reload=reload))


async def serve_gateway(
    settings: GatewaySetup,
    *,
    shutdown: Shutdown | None = None,
    on_listening: _OnListening | None = None,
    reload: Reload | None = None,
) -> None:
    """Serve until `shutdown` is asked for, by us or by a signal."""
    shutdown = shutdown or Shutdown()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(bind(settings.server))
        server = structs.replace(settings.server, port=listener.getsockname()[1])
        process = await build_gateway(settings, server, stack)
        relay = await process.relay()
        if relay is not None:
            stack.push_async_callback(relay.close, _HASTY_CLOSE_S)
            process = dataclasses.replace(
                process, server=structs.replace(server, grpc_port=relay.address.port)
            )
        proxy = process.proxy(await process.open_control_app(stack))
        stack.push_async_callback(proxy.close)
        reload_config = stack.enter_context(
            config_reloader(partial(process.read_config, reload or (lambda: settings)))
        )
        stack.enter_context(on_termination(shutdown))
        stack.enter_context(on_hangup(reload_config))
        await stack.enter_async_context(_running(*process.parts.background_tasks()))
        await _first_probes(process.parts.fleet)
        if relay is not None:
            await relay.open()
        http_server = await asyncio.get_running_loop().create_server(
            proxy.connection, sock=listener, ssl=_tls(server), backlog=BACKLOG
        )
        stack.callback(http_server.close)
        if on_listening is not None:
            on_listening(url_of(listener, server), None if relay is None else str(relay.address))
        await shutdown.drain.wait()
        await _drain(proxy, relay, process.gate, shutdown, server.drain_timeout_s)


async def _first_probes(fleet: Fleet) -> None:
    """Wait a moment until each declared node was probed once, so that its models are known from the start."""
    changed = asyncio.Event()
    stop_listening = fleet.listen(changed.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_PROBES_S):
                while any(view.last_heard_s is None and not view.failures for view in fleet.nodes.values()):
                    changed.clear()
                    await changed.wait()
    finally:
        stop_listening()


def _tls(server: ServerSettings) -> ssl.SSLContext | None:
    if server.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(server.tls_cert, server.tls_key)
    except OSError as error:
        raise UnusableCertificate(error) from None
    return context


@contextlib.asynccontextmanager
async def _running(*work: Coroutine[None, None, None]) -> AsyncGenerator[None, None]:
    """While inside, these run as tasks."""
    tasks = [asyncio.create_task(_logged(each)) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except Exception:
        _logger.exception("a background task of the gateway failed")
        raise


async def _drain(
    proxy: ProxyListener, relay: "RelayEndpoint | None", gate: Gate, shutdown: Shutdown, timeout_s: float
) -> None:
    proxy.drain()
    gate.drain()
    if relay is not None:
        relay.drain()
    _logger.info("draining, %d requests in flight", proxy.in_flight)
    closing = [asyncio.create_task(proxy.idle()), asyncio.create_task(gate.idle())]
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
