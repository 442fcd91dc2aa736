"""Whether a request may come in, and what it asks for: all that is decided before anybody is waited for."""

from msgspec import Struct

from ganglion.core.errors import MissingParameter, NotAllowed, RequestQuarantined
from ganglion.gateway.admission import Gatekeeper, Identity
from ganglion.gateway.affinity import affinity_of
from ganglion.gateway.call import Call
from ganglion.gateway.peek import Peeked, peek, peek_query
from ganglion.gateway.quarantine import TOOK_DOWN, Quarantine
from ganglion.gateway.routes import Route
from ganglion.gateway.tracing import Span

NOBODY = Identity("")
"""Whoever looks at a public page."""


class Errand(Struct):
    """A request that may come in."""

    call: Call
    route: Route
    request_id: str
    identity: Identity = NOBODY
    peeked: Peeked | None = None
    """None where no model answers."""
    affinity: str = ""
    span: Span | None = None
    """Where requests are traced."""

    @property
    def model(self) -> str:
        """As the client names it; empty where it names none."""
        return "" if self.peeked is None else self.peeked.model


def identify(errand: Errand, gatekeeper: Gatekeeper) -> None:
    """Find out whose request it is; raises InvalidApiKey, NotAllowed."""
    access = errand.route.access
    if access == "public":
        return
    identity = errand.identity = gatekeeper.identify(errand.call.head.key)
    role = "user" if access == "key" else access
    if identity.role not in ("admin", role):
        raise NotAllowed("This key may not do that.", hint=f"It takes a key of role {role}.")


def understand(errand: Errand, quarantine: Quarantine) -> Peeked:
    """Read what is asked; raises InvalidJson, MissingParameter, NotAllowed, RequestQuarantined."""
    call, route, identity = errand.call, errand.route, errand.identity
    head = call.head
    assert route.wire is not None
    if head.method == b"GET":
        peeked = peek_query(head.target.query)
    else:
        peeked = peek(route.wire, call.body, generates=route.generates)
    errand.peeked = peeked
    # A response that continues another one may leave its model out, and the desk finds it.
    if not peeked.model and (not route.is_desk or identity.models is not None):
        raise MissingParameter(
            "The parameter 'model' is required.", param="model", hint="GET /v1/models lists them."
        )
    if identity.models is not None and peeked.model not in identity.models:
        raise NotAllowed(f"This key may not ask for the model {peeked.model[:200]!r}.", param="model")
    if peeked.parts:
        errand.affinity = affinity_of(identity.tenant, peeked.model, *peeked.parts)
    if quarantine.holds(identity.tenant, head.target.path, call.body):
        raise RequestQuarantined(TOOK_DOWN)
    return peeked
