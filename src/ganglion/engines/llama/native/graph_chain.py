"""Samplers that run inside the model's graph, so that a token leaves the device and not a row of logits.

Law: a chain takes its first and last member from here. The first adds up the row before anything touches it,
which is NaN or infinite where the model computed no numbers; the last leaves that one number and the token to
be copied to the host, and nothing that is as wide as the vocabulary. The library asks the last one only when
all before it run on the device: that is how we know.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from ganglion.core.errors import EngineFailed, EngineUnavailable
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.native.library import Library

_MOST_CANDIDATES: Final = 1024
"""A larger top_k is no use in the graph, and the library ends the process at one beyond the vocabulary."""
_HIGHEST_MIN_P: Final = 0.9
"""Close to 1 the threshold rounds to the highest logit itself, and nothing is left in the graph."""
_LOWEST_TEMPERATURE: Final = 0.01
"""Below, logits divided by it leave what a float can hold."""
_MOST_BIASES: Final = 1024


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a chain does to a row; chains of one shape differ in their random numbers alone."""

    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    @property
    def draws(self) -> bool:
        """Whether chance has a part in it."""
        return self.temperature > 0.0


def graph_shape(
    sampling: ResolvedSampling, bias: tuple[tuple[int, float], ...], vocabulary_size: int
) -> GraphShape | None:
    """The shape that does what a request asks for; None where the graph cannot express it."""
    more = sampling.samplers
    if (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
        or more.has_dry
        or more.allowed_token_ids is not None
        or len(bias) > _MOST_BIASES
    ):
        return None
    if sampling.temperature <= 0.0 and not more.draws:
        return GraphShape(bias=bias)
    top_k = sampling.top_k if 0 < sampling.top_k < vocabulary_size else 0
    if (
        more.mirostat
        or more.top_n_sigma > 0.0
        or more.typical_p < 1.0
        or more.xtc_probability > 0.0
        or more.dynatemp_range > 0.0
        or sampling.temperature < _LOWEST_TEMPERATURE
        or sampling.min_p > _HIGHEST_MIN_P
        or top_k > _MOST_CANDIDATES
    ):
        return None
    return GraphShape(sampling.temperature, top_k, min(sampling.top_p, 1.0), max(sampling.min_p, 0.0), bias)


class _Ends:
    """The first and the last member of one chain, and what passes between them."""

    def __init__(self) -> None:
        self.is_whole = False
        """Whether all before the last one run on the device."""
        self.total: Any = None


class GraphSamplers:
    """Makes chains for the graph; keeps the callbacks that they call alive."""

    def __init__(self, library: Library, vocabulary_size: int) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        self._vocabulary_size = vocabulary_size
        self._check_layout()
        ffi = self._ffi
        self._name = ffi.new("char[]", b"ganglion")
        self._callbacks = {
            "name": ffi.callback("const char *(*)(const void *)", lambda _: self._name),
            "apply": ffi.callback("void (*)(void *, void *)", lambda *_: None),
            "copy_state": ffi.callback("void (*)(const void *, void *)", lambda *_: None),
        }
        init = "bool (*)(void *, void *, uint32_t)"
        apply = "void (*)(void *, void *, void *, struct llama_sampler_data *)"
        self._first = self._interface(ffi.callback(init, lambda *_: True), ffi.callback(apply, self._add_up))
        self._last = self._interface(
            ffi.callback(init, self._note_whole, error=False), ffi.callback(apply, self._leave_token)
        )

    def chain(self, shape: GraphShape, seed: int) -> "GraphChain":
        """A chain that draws from here on what this seed gives."""
        lib, ffi = self._lib, self._ffi
        ends = _Ends()
        handle = ffi.new_handle(ends)
        parts = [lib.llama_sampler_init(self._first[0], handle)]
        if shape.bias:
            bias = ffi.new("llama_logit_bias[]", list(shape.bias))
            parts.append(lib.llama_sampler_init_logit_bias(self._vocabulary_size, len(shape.bias), bias))
        if not shape.draws:
            parts.append(lib.llama_sampler_init_greedy())
        else:
            parts += self._cuts(shape)
            parts.append(lib.llama_sampler_init_temp(shape.temperature))
            parts.append(lib.llama_sampler_init_dist(seed % 2**32))
        parts.append(lib.llama_sampler_init(self._last[0], handle))
        params = lib.llama_sampler_chain_default_params()
        params.no_perf = True
        chain = lib.llama_sampler_chain_init(params)
        for part in parts:
            if part == ffi.NULL:
                raise EngineFailed("The library refused a sampler.")
            lib.llama_sampler_chain_add(chain, part)
        return GraphChain(lib, chain, shape, ends, handle)

    def _cuts(self, shape: GraphShape) -> list[Any]:
        parts = []
        if shape.top_k > 0:
            parts.append(self._lib.llama_sampler_init_top_k(shape.top_k))
        if shape.top_p < 1.0:
            parts.append(self._lib.llama_sampler_init_top_p(shape.top_p, 1))
        if shape.min_p > 0.0:
            parts.append(self._lib.llama_sampler_init_min_p(shape.min_p, 1))
        return parts

    # Called by the library while it builds a graph

    def _add_up(self, sampler: Any, arena: Any, _graph: Any, data: Any) -> None:
        self._ends(sampler).total = self._lib.ggml_sum(arena, data.logits)

    def _leave_token(self, sampler: Any, _arena: Any, _graph: Any, data: Any) -> None:
        data.logits = self._ends(sampler).total
        data.probs = data.candidates = self._ffi.NULL

    def _note_whole(self, sampler: Any, _buffer_type: Any, _most: int) -> bool:
        self._ends(sampler).is_whole = True
        return True

    def _ends(self, sampler: Any) -> _Ends:
        ends: _Ends = self._ffi.from_handle(self._ffi.cast("struct llama_sampler *", sampler).ctx)
        return ends

    def _interface(self, init: Any, apply: Any) -> tuple[Any, Any, Any]:
        """An interface and the callbacks that must live as long as it."""
        interface = self._ffi.new("struct llama_sampler_i *")
        for name, callback in self._callbacks.items():
            setattr(interface, name, callback)
        interface.backend_init, interface.backend_apply = init, apply
        return interface, init, apply

    def _check_layout(self) -> None:
        """A sampler of the library itself, read through our structs, must be what it is known to be."""
        ffi = self._ffi
        greedy = self._lib.llama_sampler_init_greedy()
        interface = ffi.cast("struct llama_sampler *", greedy).iface
        absent = ("accept", "backend_accept", "backend_set_input", "backend_reset")
        present = ("name", "apply", "reset", "clone", "free", "backend_init", "backend_apply", "copy_state")
        is_known = all(getattr(interface, name) == ffi.NULL for name in absent)
        is_known = is_known and all(getattr(interface, name) != ffi.NULL for name in present)
        self._lib.llama_sampler_free(greedy)
        if not is_known:
            raise EngineUnavailable(
                "This llama.cpp has other samplers than the ones this binding knows.",
                hint="Set --graph-sampling false, or use the pinned version of the library.",
                extras={"engine": "llama"},
            )


class GraphChain:
    """One chain. Law: it is attached to one slot once in its life; its state can be copied to another."""

    def __init__(self, lib: Any, pointer: Any, shape: GraphShape, ends: _Ends, handle: Any) -> None:
        self._lib, self._ends, self._handle = lib, ends, handle
        self.pointer = pointer
        self.shape = shape

    @property
    def is_whole(self) -> bool:
        """Whether all of it runs on the device, known once it is attached."""
        return self._ends.is_whole

    def take_state_of(self, other: "GraphChain") -> None:
        """Go on with the random numbers of a chain of the same shape."""
        assert self.shape == other.shape
        if self.shape.draws:
            self._lib.llama_sampler_copy(other.pointer, self.pointer)

    def free(self) -> None:
        """Give it back, once it is detached."""
        self._lib.llama_sampler_free(self.pointer)


def is_number(total: float) -> bool:
    """Whether a row was numbers: the sum of one that the model forbids tokens in is minus infinity."""
    return total == total and total != math.inf  # noqa: PLR0124 - NaN is what differs from itself
