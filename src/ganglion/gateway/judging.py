"""Whether a request may come in, and what it asks for: all that is decided before anybody is waited for."""

from typing import Final

from msgspec import Struct

from ganglion.core.errors import InvalidValue, NotAllowed, RequestQuarantined
from ganglion.gateway.admission import Gatekeeper, Identity, Wanted, require_role
from ganglion.gateway.affinity import affinity_of
from ganglion.gateway.call import Call
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.only_model import only_of
from ganglion.gateway.peek import Peeked, asks_to_unload, peek, peek_query
from ganglion.gateway.quarantine import TOOK_DOWN, Quarantine
from ganglion.gateway.routes import Route
from ganglion.gateway.token_bound import Bound, bound_of
from ganglion.gateway.tracing import Span

NOBODY = Identity("")
"""Whoever looks at a public page."""

_UNLOADING: Final = {b"/api/chat": "messages", b"/api/generate": "prompt"}
"""Calls that unload a model when they leave out this field and say so."""


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
    bound: Bound | None = None
    """What it can take at most, where its key has a cap on that."""
    answer_tokens: int | None = None
    """What each answer is held to that its client left open; None for as long as it likes."""
    place: bytes = b""
    """What the desk finds its place by."""

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
    require_role(identity, "user" if access == "key" else access)


def wanted_of(errand: Errand) -> Wanted:
    """What it can take, where somebody has to know that before; raises InvalidValue."""
    route, call, model = errand.route, errand.call, errand.model
    if not errand.identity.is_metered or call.head.method == b"GET":
        return Wanted(model)
    assert route.wire is not None
    bound = bound_of(route.wire, call.body, generates=route.generates)
    if route.answer_tokens is not None:
        bound = Bound(bound.tokens + route.answer_tokens)
    errand.bound = bound
    return Wanted(model, bound.tokens, bound.open_answers, bound.answer_tokens)


def understand(errand: Errand, quarantine: Quarantine, fleet: Fleet) -> Peeked:
    """Read what is asked; raises InvalidJson, MissingParameter, NotAllowed, RequestQuarantined."""
    call, route, identity = errand.call, errand.route, errand.identity
    head = call.head
    assert route.wire is not None
    peeked = peek_query(head.target.query) if head.method == b"GET" else peek(route.wire, call.body)
    errand.peeked = peeked
    if not peeked.model:
        peeked.model, peeked.is_filled_in = only_of(identity.of_these(fleet.servable_models())), True
    elif peeked.model.isspace():
        raise InvalidValue("Expected the name of a model in 'model', found only blanks.", param="model")
    question = _UNLOADING.get(head.target.path)
    if question is not None and asks_to_unload(call.body, question):
        require_role(identity, "admin")
    if identity.models is not None and peeked.model not in identity.models:
        raise NotAllowed(f"This key may not ask for the model {peeked.model[:200]!r}.", param="model")
    if peeked.parts:
        errand.affinity = affinity_of(identity.tenant, peeked.model, *peeked.parts)
    if quarantine.holds(identity.tenant, head.target.path, call.body):
        raise RequestQuarantined(TOOK_DOWN)
    return peeked
