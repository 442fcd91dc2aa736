"""Counts at the desk what the front does not hear the end of, or could not know the length of."""

from starlette.types import ASGIApp, Receive, Scope, Send

from ganglion.core.events import Usage
from ganglion.core.request import Request
from ganglion.gateway.access.admission import (
    AdmissionRequest,
    OpenAdmissions,
    admission_scope,
    proxy_admission,
    use_own_admission,
)
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.gateway.metrics import GatewayMetrics
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.scope import header
from ganglion.server.quota import QuotaReservation
from ganglion.wire.headers import ADMISSION
from ganglion.wire.token_bound import TokenBound, bound_of_request


class AdmissionMiddleware:
    """An app whose requests count for the place that the front reserved for each."""

    def __init__(self, app: ASGIApp, places: OpenAdmissions) -> None:
        self._app = app
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = None if scope["type"] == "lifespan" else self._places.find(header(scope, ADMISSION))
        with admission_scope(place):
            await self._app(scope, receive, send)


class KeyMeter:
    """A Meter over the keys that the front lets in by."""

    def __init__(self, gatekeeper: KeyGatekeeper, metrics: GatewayMetrics) -> None:
        self._gatekeeper = gatekeeper
        self._metrics = metrics

    async def admit(self, principal: Principal, request: Request) -> QuotaReservation:
        """Raises InvalidApiKey for a key that was revoked meanwhile, and what a gatekeeper raises."""
        identity = self._gatekeeper.keys.identity(principal.key_id)
        bound = bound_of_request(request) if identity.is_metered else TokenBound(0)
        wanted = AdmissionRequest(request.model, bound.tokens, bound.open_answers)
        place = proxy_admission()
        if place is not None:
            await place.reserve_more(wanted)
            return QuotaReservation(answer_tokens=place.answer_tokens)
        admission = await self._gatekeeper.admit(identity, wanted)
        use_own_admission(admission)

        def settle(usage: Usage | None) -> None:
            admission.settle(usage)
            if usage is not None:
                self._metrics.spent(identity.tenant, admission.model, usage)

        return QuotaReservation(settle, admission.answer_tokens)
