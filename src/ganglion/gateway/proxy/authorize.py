"""Authentication and admission of a request, and what it asks for: all that is decided without waiting."""

import msgspec
from msgspec import Struct

from ganglion.core.errors import InvalidValue, NotAllowed, RequestQuarantined
from ganglion.gateway.access.admission import AdmissionRequest, Gatekeeper, Identity, require_role
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import QUARANTINED_MESSAGE, Quarantine
from ganglion.gateway.proxy.client_request import ClientRequest
from ganglion.gateway.proxy.peek import peek, peek_query
from ganglion.gateway.proxy.routes import ProxyRoute
from ganglion.gateway.proxy.tracing import Span
from ganglion.gateway.routing.affinity import affinity_of
from ganglion.gateway.routing.decision import only_loaded_model
from ganglion.wire.pictures_in_body import shows_pictures
from ganglion.wire.proxy_dialect import Peeked
from ganglion.wire.token_bound import TokenBound

_NOBODY = Identity("")
"""Whoever looks at a public page."""


class RequestContext(Struct):
    """A request, and what was found out about it."""

    call: ClientRequest
    route: ProxyRoute
    request_id: str
    identity: Identity = _NOBODY
    peeked: Peeked | None = None
    """None where no model answers."""
    affinity: str = ""
    has_images: bool = False
    span: Span | None = None
    """Where requests are traced."""
    bound: TokenBound | None = None
    """What it can take at most, where its key has a cap on that."""
    answer_tokens: int | None = None
    """The bound on each answer whose length its client left open; None for as long as it likes."""
    admission_id: bytes = b""
    """What the control app finds its admission by."""

    @property
    def model(self) -> str:
        """As the client names it; empty where it names none."""
        return "" if self.peeked is None else self.peeked.model


def authenticate(context: RequestContext, gatekeeper: Gatekeeper) -> None:
    """Find out whose request it is; raises InvalidApiKey, NotAllowed."""
    access = context.route.access
    if access == "public":
        return
    identity = context.identity = gatekeeper.identify(context.call.head.key)
    require_role(identity, "user" if access == "key" else access)


def admission_request(context: RequestContext) -> AdmissionRequest:
    """What it can take, where somebody has to know that before; raises InvalidValue."""
    route, call, model = context.route, context.call, context.model
    if not context.identity.is_metered or call.head.method == b"GET":
        return AdmissionRequest(model)
    bound = context.bound = bound_of(route, call.body)
    return AdmissionRequest(model, bound.tokens, bound.open_answers, bound.answer_tokens)


def bound_of(route: ProxyRoute, body: bytes) -> TokenBound:
    """What a call can take; raises InvalidValue where that cannot be read."""
    if not route.runs_model:
        return TokenBound(0)
    try:
        bound = route.dialect.bound(body)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"The most tokens that the request may take cannot be read: {error}.",
            hint="The key has a limit on tokens, so that every number has to be one.",
        ) from None
    if route.answer_tokens is not None:
        return TokenBound(bound.tokens + route.answer_tokens)
    return bound if route.generates else TokenBound(bound.tokens)


def inspect_request(context: RequestContext, quarantine: Quarantine, fleet: Fleet) -> Peeked:
    """Read what the body asks for; raises InvalidJson, MissingParameter, NotAllowed, RequestQuarantined."""
    call, route, identity = context.call, context.route, context.identity
    head = call.head
    peeked = peek_query(head.target.query) if head.method == b"GET" else peek(route.dialect, call.body)
    context.peeked = peeked
    context.has_images = shows_pictures(call.body)
    if not peeked.model:
        peeked.model, peeked.is_filled_in = (
            only_loaded_model(identity.of_these(fleet.servable_models())),
            True,
        )
    elif peeked.model.isspace():
        raise InvalidValue("Expected the name of a model in 'model', found only blanks.", param="model")
    unloads = route.dialect.unloads
    if unloads is not None and unloads(head.target.path, call.body):
        require_role(identity, "admin")
    if identity.models is not None and peeked.model not in identity.models:
        raise NotAllowed(f"This key may not ask for the model {peeked.model[:200]!r}.", param="model")
    if peeked.parts:
        context.affinity = affinity_of(
            identity.tenant, peeked.model, *peeked.parts, has_images=context.has_images
        )
    if quarantine.is_quarantined(identity.tenant, head.target.path, call.body):
        raise RequestQuarantined(QUARANTINED_MESSAGE)
    return peeked
