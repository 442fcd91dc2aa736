"""Where workers of one gateway ask each other: on a socket of their own, which no front knows."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from ganglion.core.errors import InvalidRequest
from ganglion.gateway import shared
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import Quarantine
from ganglion.gateway.routing.decision import ModelLoader
from ganglion.gateway.shared import MAX_WAIT_S, Caught
from ganglion.gateway.telling import Telling
from ganglion.server.life.drain import Gate
from ganglion.server.middleware.errors import ErrorMiddleware
from ganglion.server.prometheus import CONTENT_TYPE

T = TypeVar("T")

_PACKED = "application/msgpack"


class WorkerDoor:
    """What one worker tells, and does, for the others; `page` is its own `/metrics`."""

    def __init__(
        self,
        fleet: Fleet,
        loader: ModelLoader,
        gate: Gate,
        quarantine: Quarantine,
        *,
        poke: Callable[[str], None],
        page: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._fleet = fleet
        self._loader = loader
        self._gate = gate
        self._poke = poke
        self._page = page
        self._quarantine = quarantine
        self._telling = Telling(fleet, quarantine)

    def spread_poison(self) -> None:
        """Tell whoever follows of each request that is found out here, at once."""
        self._quarantine.on_add = lambda _: self._telling.hurry()

    def app(self) -> ASGIApp:
        """As an ASGI app."""
        routes = [
            Route("/shared", self._shared),
            Route("/in_flight", self._in_flight),
            Route("/metrics", self._metrics),
            Route("/load", self._load, methods=["POST"]),
            Route("/notice", self._notice, methods=["POST"]),
        ]
        return ErrorMiddleware(Router(routes, redirect_slashes=False))

    def close(self) -> None:
        """Answer whoever waits for news."""
        self._telling.close()

    async def _shared(self, request: Request) -> Response:
        query = request.query_params
        try:
            wait_s = min(max(float(query.get("wait", "0")), 0.0), MAX_WAIT_S)
        except ValueError:
            raise InvalidRequest("Invalid value for 'wait': expected seconds.") from None
        told = await self._telling.news(query.get("since", ""), wait_s)
        return Response(shared.encode(told), media_type=_PACKED)

    async def _in_flight(self, _: Request) -> Response:
        return Response(shared.encode(dict(self._fleet.in_flight)), media_type=_PACKED)

    async def _metrics(self, _: Request) -> Response:
        return Response(await self._page(), headers={"content-type": CONTENT_TYPE})

    async def _load(self, request: Request) -> Response:
        wanted = await _read(request, shared.parse_wanted)
        with self._gate.admit():
            await self._loader.load(wanted.model)
        return Response(shared.encode(Caught(self._telling.version())), media_type=_PACKED)

    async def _notice(self, request: Request) -> Response:
        noticed = await _read(request, shared.parse_noticed)
        for name in noticed.nodes:
            self._poke(name)
        for digest in noticed.poison:
            self._quarantine.hold(digest)
        if noticed.poison:
            self._telling.hurry()
        return Response(status_code=204)


async def _read(request: Request, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(await request.body())
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"This is not what workers tell each other: {error}.") from None
