"""Token sessions as a node serves them: a session service behind the gRPC listener.

Law: calls end before the service closes its sessions, and it does so before the engine closes, so
that the sessions on disk are what the clients have seen.
"""

import asyncio
import logging
from typing import Final

from ganglion.core.engine import Engine, ModelState
from ganglion.server.capabilities import capabilities_of
from ganglion.server.fleet_membership import Leases
from ganglion.server.gate import Gate
from ganglion.server.grpc.caller import CURRENT_CALLER, KeyAuthenticator
from ganglion.server.grpc.handlers import gated_behaviours, generic_handler
from ganglion.server.grpc.interceptor import CallInterceptor
from ganglion.server.grpc.listener import GrpcListener, ListenAddress
from ganglion.server.grpc.salience_service import SalienceService
from ganglion.server.middleware.principal import KeyRing
from ganglion.server.observed import ObservedSessions
from ganglion.server.prometheus import Metrics, SessionCounts
from ganglion.server.settings import ServerSettings
from ganglion.sessions.service import SessionService
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.health import node_status
from ganglion.wire.salience.service import SERVICE

_logger = logging.getLogger("ganglion.server")

_SAVE_SESSIONS_S: Final = 10.0
"""Sessions that are not written by then are lost."""


class GrpcServer:
    """Binds its port when it is made; opened, it answers calls; closed, it has ended all of them."""

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
        self._listener = GrpcListener(
            settings, CallInterceptor(KeyAuthenticator(keys, leases or Leases()), settings, metrics)
        )
        self._sessions: SessionService | None = None

    @property
    def address(self) -> ListenAddress:
        """Where it listens."""
        return self._listener.address

    async def open(self, engine: Engine, session_settings: SessionSettings | None = None) -> None:
        """Register the suspended sessions, and answer calls."""
        capabilities = capabilities_of(engine)
        measured = ObservedSessions(
            capabilities.sessions, self._settings.deadlines, self._metrics, engine.models
        )
        sessions = self._sessions = SessionService(
            measured, capabilities.reader, engine.models, session_settings
        )
        await sessions.start()
        self._metrics.sessions = lambda: SessionCounts(
            sessions.open_sessions, sessions.tokens_in_memory, sessions.image_bytes_in_memory
        )
        service = SalienceService(
            sessions,
            capabilities.reader,
            engine.models,
            max_text_bytes=self._settings.max_body_bytes,
            is_strict=self._settings.is_strict,
        )
        behaviours = gated_behaviours(service.methods, self._gate, lambda method, _: CURRENT_CALLER.get())
        salience = generic_handler(SERVICE, behaviours)
        await self._listener.start(salience, lambda: self._is_serving(engine.models()))

    async def close(self, within_s: float) -> None:
        """End every call within `within_s`, and write the sessions to disk where the settings say so."""
        await self._listener.end(within_s)
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            try:
                async with asyncio.timeout(_SAVE_SESSIONS_S):
                    await sessions.stop()
            except TimeoutError:
                _logger.error("not all sessions could be written to disk within %g s", _SAVE_SESSIONS_S)
        await self._listener.stop()

    def _is_serving(self, models: tuple[ModelState, ...]) -> bool:
        return node_status(models, is_draining=self._gate.is_draining) in ("ok", "degraded")
