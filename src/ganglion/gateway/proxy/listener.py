"""The gateway's public port: its connections, the requests in flight, and the clock for their deadlines."""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from urllib.parse import quote_from_bytes

from ganglion.core.errors import GanglionError
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import Gatekeeper, OpenAdmissions
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import Quarantine
from ganglion.gateway.metrics import GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.proxy.authorize import RequestContext
from ganglion.gateway.proxy.body_budget import body_budget
from ganglion.gateway.proxy.client_connection import ClientConnection
from ganglion.gateway.proxy.descriptors import DescriptorWatch
from ganglion.gateway.proxy.tracing import Tracing
from ganglion.gateway.proxy.upstream_request import UpstreamHeads
from ganglion.gateway.routing.decision import Chooser, ModelLoader
from ganglion.gateway.upstream.pool import ConnectionPools

_MAX_WAITING = 512
"""Lines that wait for the next write."""
_PATH_SHOWN = 200
_RENEWED = b"/fleet/join"
"""What every node that joined asks all the time; that it came and went is said once, elsewhere."""
_REFUSED = 400

_WriteLines = Callable[[str], object]


class AccessLog:
    """Lines as `ganglion serve` logs them, with who asked, which node answered and what it came to."""

    def __init__(self, write: _WriteLines | None = None, *, is_json: bool = False) -> None:
        self._write = write
        self._is_json = is_json
        self._lines: list[str] = []
        self._stamp = ""
        self.tick()

    def tick(self) -> None:
        """Write what waits; called now and then, so that a line is at most that late."""
        self.flush()
        now_s = time.time()
        moment = time.localtime(now_s)
        self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z" if self._is_json else "%H:%M:%S", moment)

    def add(
        self, context: RequestContext, status: int, duration_s: float, node: str, usage: Usage | None
    ) -> None:
        """A request that ended."""
        head = context.call.head
        if self._write is None or (head.target.path == _RENEWED and status < _REFUSED):
            return
        spent = "" if usage is None else f" tokens={usage.prompt_tokens}+{usage.completion_tokens}"
        message = (
            f"method={head.method.decode()} path={head.target.encoded[:_PATH_SHOWN].decode('latin-1')} "
            f"status={status} duration_ms={duration_s * 1000:.1f} request_id={context.request_id} "
            f"tenant={_word(context.identity.tenant)} model={_word(context.model)} node={node or '-'}{spent}"
        )
        if self._is_json:
            entry = {"time": self._stamp, "level": "info", "logger": "ganglion.request", "message": message}
            self._lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        else:
            self._lines.append(f"{self._stamp} info ganglion.request: {message}\n")
        if len(self._lines) >= _MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits now."""
        if self._lines and self._write is not None:
            lines, self._lines = self._lines, []
            self._write("".join(lines))


def _word(text: str) -> str:
    """A client's word as one word of a line."""
    if not text:
        return "-"
    if text.isascii() and text.isprintable() and " " not in text:
        return text[:_PATH_SHOWN]
    return quote_from_bytes(text[:_PATH_SHOWN].encode(errors="replace"))


_logger = logging.getLogger("ganglion.gateway")

TICK_S = 0.5
"""How finely timeouts are kept: one walk over all connections costs less than a timer for each request."""

OriginGuard = Callable[[bytes | None, bytes | None, bytes | None, bool], GanglionError | None]
"""Judges the Host, the Origin and the Sec-Fetch-Site of a request; the last argument says that it looks at a
public page."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Bounds on what clients may do."""

    max_body_bytes: int = 8 * 2**20
    max_connections: int = 8192
    head_s: float = 30.0
    body_s: float = 60.0
    keep_alive_s: float = 75.0
    first_byte_s: float = 900.0
    """A node that has said nothing by then is given up."""
    idle_s: float = 300.0
    """And one that says nothing more for as long."""
    keep_alive_event_s: float = 10.0
    """How long a foreign server may be silent before its client gets a keep-alive event."""
    stall_s: float = 30.0
    """A client that reads nothing for as long is cut."""
    guard: OriginGuard | None = None
    cors_origins: frozenset[str] = frozenset()
    """Whose pages may read answers, in lower case; `*` for all."""
    log: Callable[[str], object] | None = None
    """Takes lines of the request log, many at a time; None for none."""
    is_json_log: bool = False
    tracing: Tracing | None = None
    """Makes each request a span; None for none."""


class ProxyListener:
    """Everything that the connections share; `connection` makes one."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        fleet: Fleet,
        chooser: Chooser,
        gatekeeper: Gatekeeper,
        loader: ModelLoader | None,
        pools: ConnectionPools,
        control_app: NodeSpec,
        metrics: GatewayMetrics,
        probe_now: Callable[[str], None] = lambda name: None,
        quarantine: Quarantine | None = None,
        open_admissions: OpenAdmissions | None = None,
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.chooser = chooser
        self.gatekeeper = gatekeeper
        self.loader = loader
        self.pools = pools
        self.writes = pools.writes
        self.control_app = control_app
        self.metrics = metrics
        self.probe_now = probe_now
        """Told the name of a node that could not be reached, so that somebody looks."""
        self.log = AccessLog(settings.log, is_json=settings.is_json_log)
        self.upstream_heads = UpstreamHeads(pools)
        self.quarantine = quarantine or Quarantine()
        self.open_admissions = OpenAdmissions() if open_admissions is None else open_admissions
        self.bodies = body_budget(settings.max_body_bytes)
        self.connections: set[ClientConnection] = set()
        self.in_flight = 0
        self.is_draining = False
        self.tick_s = TICK_S
        self.now_s = time.monotonic()
        """Coarse: as of the last tick."""
        self._idle = asyncio.Event()
        self._alone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._descriptors = DescriptorWatch()
        self._id_prefix = secrets.token_hex(8)
        self._ids = count()
        metrics.in_flight = fleet.in_flight

    def connection(self) -> ClientConnection:
        """A new client's; the factory for `loop.create_server`."""
        if self._reaper is None:
            self.now_s = time.monotonic()  # nobody kept it while nobody was there
            self._reaper = asyncio.get_running_loop().create_task(self._reap())
        return ClientConnection(self)

    def new_id(self) -> str:
        """A name for a request that no other has."""
        return f"{self._id_prefix}{next(self._ids):016x}"

    def opened(self, connection: ClientConnection) -> None:
        """A client came."""
        self.connections.add(connection)
        self._alone.clear()
        self.metrics.connections += 1

    def closed(self, connection: ClientConnection) -> None:
        """A client left."""
        self.connections.discard(connection)
        self.metrics.connections -= 1
        if not self.connections:
            self._alone.set()

    def ended(self) -> None:
        """A request is over."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something beside the connections; `close` awaits it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Take no new work; what runs goes on."""
        self.is_draining = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Cut every client, and with it whatever runs for it."""
        self.is_draining = True
        for connection in tuple(self.connections):
            connection.abort()
        tasks = [*self._tasks, *([] if self._reaper is None else [self._reaper])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reaper = None
        if self.connections:  # a cut connection learns of it in the next round of the loop
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alone.wait(), TICK_S)
        self.log.flush()

    async def _reap(self) -> None:
        while True:
            self.now_s = now_s = time.monotonic()
            self.log.tick()
            self._descriptors.look()
            for connection in tuple(self.connections):
                try:
                    connection.check(now_s)
                except Exception:  # one connection's fault must not be every one's
                    _logger.exception("a connection could not be checked")
                    with contextlib.suppress(Exception):
                        connection.abort()
            await asyncio.sleep(TICK_S)
