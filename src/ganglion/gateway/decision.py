"""Where a request goes: what routing asks of it, and every answer it may give."""

from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from ganglion.core.errors import GanglionError
from ganglion.gateway.node import NodeSpec, Wire


class Asked(Struct, frozen=True, gc=False):
    """What routing needs to know of a request; a struct, since one is made for each."""

    model: str
    wire: Wire
    affinity: str = ""
    """Names the conversation; the node whose prefix cache knows it is preferred. Empty for none."""
    tried: frozenset[str] = frozenset()
    """Nodes that have had their turn."""
    is_alone: bool = False
    """Whether only a node will do on which nothing else of this gateway runs."""
    tenant: str = ""
    """Whose turn it is where requests wait for a node."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A node that holds the model and speaks the wire: the request goes there as it is."""

    node: NodeSpec
    model: str
    """The model as that node names it."""
    booked_as: str = ""
    """As its answers are booked: by the catalogue's name, or the node's. Empty for the name asked for."""
    context_length: int = 0
    """What prompt and answer are together at most; 0 where nobody knows."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Only nodes that lack the wire hold the model: it is answered through the event stream."""

    node: NodeSpec
    model: str
    booked_as: str = ""
    context_length: int = 0


@dataclass(frozen=True, slots=True)
class Cold:
    """Nobody holds the model, and the catalogue knows it: it must be loaded first."""

    model: str
    """Its id in the catalogue."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody can answer, and this is why."""

    error: GanglionError
    waits_for: frozenset[str] = frozenset()
    """Nodes that would, once they have room for one more."""


Decision = Chosen | Translated | Cold | Refused


class Chooser(Protocol):
    """Decides for each request, cheaply and without waiting."""

    def choose(self, asked: Asked) -> Decision:
        """Where a request goes now."""
        ...
