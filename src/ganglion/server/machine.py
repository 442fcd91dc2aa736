"""The two routes about the node itself: how it is, and what it stands on."""

import time

from starlette.requests import Request
from starlette.responses import Response

from ganglion.core.engine import Engine, ModelHolder
from ganglion.core.errors import RouteNotFound
from ganglion.core.machine import MachineSource
from ganglion.server.drain import Gate
from ganglion.server.http import json_response
from ganglion.server.settings import ServerSettings
from ganglion.wire import discovery, health


class MachineDoor:
    """`GET /health` and `GET /discovery`; without a source nothing is known of the machine."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        settings: ServerSettings,
        holder: ModelHolder | None,
        machine: MachineSource | None,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._version = settings.build.version
        self._grpc = (
            discovery.GrpcAddress(settings.host, settings.grpc_port)
            if settings.has_grpc and settings.grpc_port is not None
            else None
        )
        self._holder = holder
        self._machine = machine
        self._began_s = time.monotonic()

    async def health(self, _: Request) -> Response:
        """How the node is doing; the devices are read elsewhere, the rest now."""
        devices = () if self._machine is None else await self._machine.readings()
        return json_response(
            health.body(
                self._engine.models(),
                uptime_s=time.monotonic() - self._began_s,
                is_draining=self._gate.is_draining,
                devices=devices,
                activation=None if self._holder is None else self._holder.activation(),
            )
        )

    async def discovery(self, _: Request) -> Response:
        """What the node is."""
        if self._machine is None:
            raise RouteNotFound("This server does not know the machine that it runs on.")
        machine = await self._machine.describe()
        max_context = max((model.context_length for model in self._engine.models()), default=None)
        return json_response(
            discovery.body(machine, version=self._version, max_context=max_context, grpc=self._grpc)
        )
