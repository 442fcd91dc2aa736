"""Counts usage in the control app: of requests whose end or length the proxy does not see."""

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
    """An app whose requests count for the admission that the proxy made for each."""

    def __init__(self, app: ASGIApp, admissions: OpenAdmissions) -> None:
        self._app = app
        self._admissions = admissions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] != "lifespan"
        admission = self._admissions.find(header(scope, ADMISSION)) if is_request else None
        with admission_scope(admission):
            await self._app(scope, receive, send)


class KeyMeter:
    """Counts for the keys that the proxy admits."""

    def __init__(self, gatekeeper: KeyGatekeeper, metrics: GatewayMetrics) -> None:
        self._gatekeeper = gatekeeper
        self._metrics = metrics

    async def admit(self, principal: Principal, request: Request) -> QuotaReservation:
        """Raises InvalidApiKey for a key that was revoked meanwhile, and what a gatekeeper raises."""
        identity = self._gatekeeper.keys.identity(principal.key_id)
        bound = bound_of_request(request) if identity.is_metered else TokenBound(0)
        needed = AdmissionRequest(request.model, bound.tokens, bound.open_answers)
        proxied = proxy_admission()
        if proxied is not None:
            await proxied.reserve_more(needed)
            return QuotaReservation(answer_tokens=proxied.answer_tokens)
        admission = await self._gatekeeper.admit(identity, needed)
        use_own_admission(admission)

        def settle(usage: Usage | None) -> None:
            admission.settle(usage)
            if usage is not None:
                self._metrics.spent(identity.tenant, admission.model, usage)

        return QuotaReservation(settle, admission.answer_tokens)
