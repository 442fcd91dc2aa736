"""The values of routing: what it needs to know of a request, and every decision that it may make."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import Struct

from ganglion.core.errors import GanglionError, MissingParameter
from ganglion.gateway.node import NodeSpec
from ganglion.wire.dialect import Wire


class ModelLoader(Protocol):
    """Loads models of the catalogue where there is room for them."""

    async def load(self, model: str) -> None:
        """Return once some node holds the model; one load runs for all callers. Raises why it cannot be."""


_LISTED: Final = 10


def only_loaded_model(loaded: Collection[str]) -> str:
    """The only model that is loaded; raises MissingParameter, which lists those that could be meant."""
    if len(loaded) == 1:
        return next(iter(loaded))
    names = sorted(loaded)
    more = ", …" if len(names) > _LISTED else ""
    found = f"loaded are {', '.join(names[:_LISTED])}{more}" if names else "no model is loaded"
    raise MissingParameter(
        f"The parameter 'model' is required: {found}.", param="model", hint="GET /v1/models lists them."
    )


class RoutingRequest(Struct, frozen=True, gc=False):
    """What routing needs to know of a request; a struct, since one is made for each."""

    model: str
    wire: Wire
    affinity: str = ""
    """Names the conversation; the node whose prefix cache knows it is preferred. Empty for none."""
    tried: frozenset[str] = frozenset()
    """Nodes that were tried already."""
    is_alone: bool = False
    """Whether the node must run nothing else of this gateway."""
    tenant: str = ""
    """Tenants take turns where requests wait for a node."""
    has_images: bool = False
    """Whether the node's model must see; one that does not say what it can may."""


@dataclass(frozen=True, slots=True)
class ChosenNode:
    """A node that holds the model and speaks the wire: the request goes there as it is."""

    node: NodeSpec
    model: str
    """The model as that node names it."""
    booked_as: str = ""
    """What its answers are booked under: the catalogue's name, or the node's; empty for the requested one."""
    context_length: int = 0
    """What prompt and answer are together at most; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class TranslatedNode:
    """Only nodes that lack the wire hold the model: it is answered through the event stream."""

    node: NodeSpec
    model: str
    booked_as: str = ""
    context_length: int = 0


@dataclass(frozen=True, slots=True)
class ColdModel:
    """No node holds the model, and the catalogue knows it: it must be loaded first."""

    model: str
    """Its id in the catalogue."""


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No node can answer, and why."""

    error: GanglionError
    waits_for: frozenset[str] = frozenset()
    """Nodes that could, once they have room for one more request."""


RoutingDecision = ChosenNode | TranslatedNode | ColdModel | NoRoute


class Chooser(Protocol):
    """Decides for each request, cheaply and without waiting."""

    def choose(self, request: RoutingRequest) -> RoutingDecision:
        """Decide where a request goes now."""
