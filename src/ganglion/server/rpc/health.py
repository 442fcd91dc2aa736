"""The service `grpc.health.v1.Health`: whether this node takes work, for anybody who asks."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from ganglion.core.errors import GanglionError, InvalidRequest, Overloaded
from ganglion.server.rpc.handlers import Behaviour

HEALTH: Final[ServiceDescriptor] = health_pb2.DESCRIPTOR.services_by_name["Health"]
WATCH_S: Final = 0.5
"""How soon a watcher hears of a change."""
MAX_WATCHERS: Final = 256
"""They need no key, and stay as long as they like."""


class _NoSuchService(InvalidRequest):
    """Health was asked of a service that is not here."""

    code = "not_found"
    grpc = "NOT_FOUND"


class HealthService:
    """Answers for the whole server, under the empty name, and for each service."""

    def __init__(self, services: tuple[str, ...], is_serving: Callable[[], bool]) -> None:
        self._services = ("", *services)
        self._is_serving = is_serving
        self._watchers = 0
        self.behaviours: dict[str, Behaviour] = {
            "Check": self._check,
            "List": self._list,
            "Watch": self._watch,
        }

    async def _check(
        self, message: health_pb2.HealthCheckRequest, _: object
    ) -> health_pb2.HealthCheckResponse:
        if message.service not in self._services:
            raise self._unknown(message.service)
        return self._response()

    async def _list(self, _: health_pb2.HealthListRequest, __: object) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(statuses={name: self._response() for name in self._services})

    async def _watch(
        self, message: health_pb2.HealthCheckRequest, _: object
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        if self._watchers >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} watch this server already.", hint="Use Check.")
        self._watchers += 1
        told = None
        try:
            while True:
                now = self._response(is_known=message.service in self._services)
                if now != told:
                    yield now
                    told = now
                await asyncio.sleep(WATCH_S)
        finally:
            self._watchers -= 1

    def _response(self, *, is_known: bool = True) -> health_pb2.HealthCheckResponse:
        kinds = health_pb2.HealthCheckResponse
        if not is_known:
            return kinds(status=kinds.SERVICE_UNKNOWN)
        return kinds(status=kinds.SERVING if self._is_serving() else kinds.NOT_SERVING)

    def _unknown(self, service: str) -> GanglionError:
        return _NoSuchService(f"There is no service {service[:200]!r} here.", param="service")
