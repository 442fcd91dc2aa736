"""Says for each sequence of a step whether its token is drawn in the graph, and attaches what draws it.

Law: attaching and detaching make the library plan its graph anew, so a slot keeps its chain when its sequence
leaves, and the next one of the same shape takes it over with its own random numbers. Those belong to the
sequence: they go with it from slot to slot, one number a token, so a seed gives the same answer wherever the
sequence runs and whoever runs beside it.
"""

from dataclasses import dataclass

from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.graph_chain import GraphChain, GraphSamplers, GraphShape
from ganglion.engines.llama.native.model import NativeModel
from ganglion.scheduler.slots import Slot


@dataclass(slots=True, eq=False)
class GraphDraw:
    """What one sequence wants of the graph; `slot` is where the chain lies that draws for it now."""

    shape: GraphShape
    seed: int
    own: GraphChain | None = None
    """Keeps the random numbers while no slot draws for it."""
    slot: Slot | None = None

    @property
    def is_in_graph(self) -> bool:
        """Whether its tokens come out of the graph."""
        return self.slot is not None


@dataclass(slots=True, eq=False)
class _Attached:
    """The chain of a slot, and whose random numbers it has."""

    chain: GraphChain
    draw: GraphDraw | None


class GraphSampling:
    """Owns the chains that are attached, one for each slot at most."""

    def __init__(self, model: NativeModel) -> None:
        self._samplers = GraphSamplers(model.library, model.vocabulary_size)
        self._attached: dict[Slot, _Attached] = {}
        self._unsupported: set[tuple[bool, bool, bool, bool, bool]] = set()
        """Kinds of chains that the device cannot run whole."""

    def prepare(self, context: NativeContext, slot: Slot, draw: GraphDraw | None) -> None:
        """Let the slot draw for a sequence; None, or what the device cannot run, is left to the host."""
        if draw is None or _kind(draw.shape) in self._unsupported:
            self._detach(context, slot)
            return
        if draw.slot == slot:
            return
        own = self._reclaimed(draw)
        found = self._attached.get(slot)
        if found is not None and found.chain.shape == draw.shape:
            if found.draw is not None:
                self._reclaimed(found.draw)
            chain = found.chain
        else:
            self._detach(context, slot)
            chain = self._samplers.chain(draw.shape, draw.seed)
            if not (context.attach(slot.index, chain) and chain.is_whole):
                context.detach(slot.index)
                chain.free()
                self._unsupported.add(_kind(draw.shape))
                return
        chain.take_state_of(own)
        self._attached[slot] = _Attached(chain, draw)
        draw.slot = slot

    def leave(self, draw: GraphDraw) -> None:
        """A sequence is over; its slot keeps the chain for the next one."""
        if draw.slot is not None:
            self._attached[draw.slot].draw = None
            draw.slot = None
        if draw.own is not None:
            draw.own.free()
            draw.own = None

    def _reclaimed(self, draw: GraphDraw) -> GraphChain:
        """The sequence's own chain, with the random numbers that it goes on with; its slot loses it."""
        own = draw.own = draw.own or self._samplers.chain(draw.shape, draw.seed)
        if draw.slot is not None:
            attached = self._attached[draw.slot]
            own.take_state_of(attached.chain)
            attached.draw = draw.slot = None
        return own

    def _detach(self, context: NativeContext, slot: Slot) -> None:
        found = self._attached.get(slot)
        if found is None:
            return
        if found.draw is not None:
            self._reclaimed(found.draw)
        context.detach(slot.index)
        found.chain.free()
        del self._attached[slot]


def _kind(shape: GraphShape) -> tuple[bool, bool, bool, bool, bool]:
    """Which operations a shape takes of the device."""
    return shape.draws, shape.top_k > 0, shape.top_p < 1.0, shape.min_p > 0.0, bool(shape.bias)
