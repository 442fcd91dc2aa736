"""Token sessions as a node serves them: a keeper behind the gRPC listener.

Law: calls end before the keeper lets go of its sessions, and the keeper does so before the engine closes, so
that what is kept on disk is what the clients were told.
"""

import asyncio
import logging
from typing import Final

from ganglion.core.engine import Engine, ModelState
from ganglion.server.drain import Gate
from ganglion.server.keys import KeyRing
from ganglion.server.leases import Leases
from ganglion.server.metrics import Metrics, SessionCounts
from ganglion.server.ports import ports_of
from ganglion.server.rpc.caller import KeyJudge
from ganglion.server.rpc.guard import Guard
from ganglion.server.rpc.handlers import generic_handler
from ganglion.server.rpc.listener import Address, RpcListener
from ganglion.server.rpc.measured import MeasuredSessions
from ganglion.server.rpc.service import SERVICE, SalienceService, behaviours_of
from ganglion.server.settings import ServerSettings
from ganglion.sessions.keeper import Keeper
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.health import node_status

logger = logging.getLogger("ganglion.server")

KEEP_S: Final = 10.0
"""Sessions that take longer to write are left behind."""


class RpcDoor:
    """Takes its port when it is made; opened, it answers; closed, it has told everybody."""

    def __init__(
        self,
        settings: ServerSettings,
        gate: Gate,
        keys: KeyRing,
        metrics: Metrics,
        leases: Leases | None = None,
    ) -> None:
        self._settings = settings
        self._gate = gate
        self._metrics = metrics
        self._listener = RpcListener(settings, Guard(KeyJudge(keys, leases or Leases()), settings, metrics))
        self._keeper: Keeper | None = None

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    async def open(self, engine: Engine, sessions: SessionSettings | None = None) -> None:
        """Bring back what was kept, and answer calls."""
        ports = ports_of(engine)
        measured = MeasuredSessions(ports.sessions, self._settings.deadlines, self._metrics, engine.models)
        keeper = self._keeper = Keeper(measured, ports.reader, engine.models, sessions)
        await keeper.start()
        self._metrics.sessions = lambda: SessionCounts(keeper.open_sessions, keeper.held_tokens)
        service = SalienceService(
            keeper,
            ports.reader,
            engine.models,
            max_text_bytes=self._settings.max_body_bytes,
            is_strict=self._settings.is_strict,
        )
        salience = generic_handler(SERVICE, behaviours_of(service, self._gate))
        await self._listener.start(salience, lambda: self._is_serving(engine.models()))

    async def close(self, within_s: float) -> None:
        """End every call, give them so long to hear of it, and keep the sessions where that is wanted."""
        await self._listener.end(within_s)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            try:
                async with asyncio.timeout(KEEP_S):
                    await keeper.stop()
            except TimeoutError:
                logger.error("the sessions were not all kept within %g s", KEEP_S)
        await self._listener.stop()

    def _is_serving(self, models: tuple[ModelState, ...]) -> bool:
        return node_status(models, is_draining=self._gate.is_draining) in ("ok", "degraded")
