"""The routes about the fleet itself: how it is, who joins and leaves, and what operators move.

Only the process that leads has all of them; how it is every worker can say.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ganglion.core.errors import InvalidValue
from ganglion.gateway.decision import Chooser
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.loader import FleetLoader
from ganglion.gateway.membership import Membership
from ganglion.server.drain import Gate
from ganglion.server.gateway.offer import Offer
from ganglion.server.gateway.operations import drain, move
from ganglion.server.gateway.overview import overview_of
from ganglion.server.http import json_response, read_json
from ganglion.server.settings import ServerSettings
from ganglion.wire import fleet as fleet_wire
from ganglion.wire import health
from ganglion.wire import overview as overview_wire


@dataclass(frozen=True, slots=True)
class HealthDoors:
    """What answers how the gateway is."""

    fleet: Fleet
    chooser: Chooser
    gate: Gate
    offer: Offer
    began_s: float

    def routes(self) -> list[BaseRoute]:
        """Where they stand."""
        return [Route("/health", self.health), Route("/health/ready", self.ready)]

    async def health(self, _: Request) -> Response:
        """`GET /health`."""
        overview = overview_of(self.fleet, self.chooser, self.offer.promised)
        return json_response(
            overview_wire.encode(
                overview_wire.GatewayHealth(
                    status=overview.status,
                    uptime_s=round(time.monotonic() - self.began_s, 3),
                    draining=self.gate.is_draining,
                    nodes=overview_wire.NodeCount(
                        sum(node.healthy for node in overview.nodes), len(overview.nodes)
                    ),
                    unservable=overview.unservable,
                )
            )
        )

    async def ready(self, _: Request) -> Response:
        """`GET /health/ready`: whether anything could be answered here."""
        if not self.gate.is_draining and any(view.takes_work for view in self.fleet.nodes.values()):
            return json_response(health.probe("ok"))
        status: health.NodeStatus = "draining" if self.gate.is_draining else "loading"
        return Response(health.probe(status), 503, {"retry-after": "2"}, "application/json")


async def nothing_elsewhere() -> Mapping[str, int]:
    """Of a gateway that is one process."""
    return {}


@dataclass(frozen=True, slots=True)
class FleetDoors:
    """What operators and nodes ask; `elsewhere` counts what other workers have running, by node."""

    fleet: Fleet
    chooser: Chooser
    membership: Membership
    loader: FleetLoader
    poke: Callable[[str], None]
    settings: ServerSettings
    offer: Offer
    elsewhere: Callable[[], Awaitable[Mapping[str, int]]] = nothing_elsewhere

    def routes(self) -> list[BaseRoute]:
        """Where they stand."""
        return [
            Route("/fleet", self.every),
            Route("/fleet/join", self.join, methods=["POST"]),
            Route("/fleet/leave", self.leave, methods=["POST"]),
            Route("/fleet/drain", self.drain, methods=["POST"]),
            Route("/fleet/move", self.move, methods=["POST"]),
            Route("/fleet/load", self.load, methods=["POST"]),
        ]

    async def every(self, _: Request) -> Response:
        """`GET /fleet`."""
        elsewhere = await self.elsewhere()
        return json_response(
            overview_wire.encode(overview_of(self.fleet, self.chooser, self.offer.promised, elsewhere))
        )

    async def join(self, request: Request) -> Response:
        """`POST /fleet/join`."""
        asked = fleet_wire.parse_join(await self._body(request))
        try:
            lease = self.membership.join(asked)
        except InvalidValue:
            # Perhaps the one that holds the name is gone, and its heir stands here.
            self.poke(asked.name)
            raise
        return json_response(fleet_wire.encode(lease))

    async def leave(self, request: Request) -> Response:
        """`POST /fleet/leave`."""
        asked = fleet_wire.parse_leave(await self._body(request))
        self.membership.leave(asked)
        return _done(f"{asked.name} has left")

    async def drain(self, request: Request) -> Response:
        """`POST /fleet/drain`."""
        asked = overview_wire.parse_drain(await self._body(request))
        return _done(*await drain(self.fleet, self.loader, self.chooser, asked))

    async def move(self, request: Request) -> Response:
        """`POST /fleet/move`."""
        asked = overview_wire.parse_move(await self._body(request))
        return _done(*await move(self.fleet, self.loader, asked))

    async def load(self, request: Request) -> Response:
        """`POST /fleet/load`."""
        asked = overview_wire.parse_load(await self._body(request))
        await self.loader.load(asked.model)
        return _done(f"{asked.model} is loaded")

    async def _body(self, request: Request) -> bytes:
        return await read_json(request.scope, request.receive, self.settings)


def _done(*steps: str) -> Response:
    return json_response(overview_wire.encode(overview_wire.Done(steps=steps)))
