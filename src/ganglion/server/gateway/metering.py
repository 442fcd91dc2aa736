"""Counts at the desk what the front does not hear the end of, or could not know the length of."""

from starlette.types import ASGIApp, Receive, Scope, Send

from ganglion.core.events import Usage
from ganglion.core.request import Request
from ganglion.gateway.admission import Wanted
from ganglion.gateway.booking import OpenPlaces, at, begin_at, front_place
from ganglion.gateway.gatekeeper import KeyGatekeeper
from ganglion.gateway.gateway_metrics import GatewayMetrics
from ganglion.gateway.token_bound import Bound, bound_of_request
from ganglion.gateway.trusted import PLACE
from ganglion.server.metering import Reserved
from ganglion.server.scope import header
from ganglion.server.visit import Visit


class AtItsPlace:
    """An app whose requests count for the place that the front reserved for each."""

    def __init__(self, app: ASGIApp, places: OpenPlaces) -> None:
        self._app = app
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = None if scope["type"] == "lifespan" else self._places.find(header(scope, PLACE))
        with at(place):
            await self._app(scope, receive, send)


class KeyMeter:
    """A Meter over the keys that the front lets in by."""

    def __init__(self, gatekeeper: KeyGatekeeper, metrics: GatewayMetrics) -> None:
        self._gatekeeper = gatekeeper
        self._metrics = metrics

    async def admit(self, visit: Visit, request: Request) -> Reserved:
        """Raises InvalidApiKey for a key that was revoked meanwhile, and what a gatekeeper raises."""
        identity = self._gatekeeper.keys.identity(visit.key_id)
        bound = bound_of_request(request) if identity.is_metered else Bound(0)
        wanted = Wanted(request.model, bound.tokens, bound.open_answers)
        place = front_place()
        if place is not None:
            await place.cover(wanted)
            return Reserved(answer_tokens=place.answer_tokens)
        admission = await self._gatekeeper.admit(identity, wanted)
        begin_at(admission)

        def settle(usage: Usage | None) -> None:
            admission.settle(usage)
            if usage is not None:
                self._metrics.spent(identity.tenant, admission.model, usage)

        return Reserved(settle, admission.answer_tokens)
