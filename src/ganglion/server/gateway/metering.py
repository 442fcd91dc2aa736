"""Counts at the desk what the front does not hear the end of."""

from ganglion.core.events import Usage
from ganglion.gateway.admission import Wanted
from ganglion.gateway.gatekeeper import KeyGatekeeper
from ganglion.gateway.gateway_metrics import GatewayMetrics
from ganglion.gateway.peek import peek
from ganglion.server.metering import Settle
from ganglion.server.visit import Visit


class KeyMeter:
    """A Meter over the keys that the front lets in by."""

    def __init__(self, gatekeeper: KeyGatekeeper, metrics: GatewayMetrics) -> None:
        self._gatekeeper = gatekeeper
        self._metrics = metrics

    async def admit(self, visit: Visit, model: str, body: bytes) -> Settle:
        """Raises InvalidApiKey for a key that was revoked meanwhile, and what a gatekeeper raises."""
        identity = self._gatekeeper.keys.identity(visit.key_id)
        wanted = Wanted(model, peek("responses", body, generates=True).tokens)
        admission = await self._gatekeeper.admit(identity, wanted)

        def settle(usage: Usage | None) -> None:
            admission.settle(usage)
            if usage is not None:
                self._metrics.spent(identity.tenant, model, usage)

        return settle
