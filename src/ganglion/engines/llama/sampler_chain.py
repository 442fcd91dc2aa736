"""llama.cpp's own samplers in a row."""

from ganglion.core.errors import EngineFailed
from ganglion.engines.llama.library import Library


class SamplerChain:
    """Samplers, drawing at the end."""

    def __init__(
        self, library: Library, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
    ) -> None:
        self._lib = library.lib
        params = self._lib.llama_sampler_chain_default_params()
        params.no_perf = True
        self.pointer = self._lib.llama_sampler_chain_init(params)
        parts = []
        if top_k > 0:
            parts.append(self._lib.llama_sampler_init_top_k(top_k))
        if top_p < 1.0:
            parts.append(self._lib.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0.0:
            parts.append(self._lib.llama_sampler_init_min_p(min_p, 1))
        parts.append(self._lib.llama_sampler_init_temp(temperature))
        parts.append(self._lib.llama_sampler_init_dist(seed))
        for part in parts:
            # Adding NULL to a chain crashes at the next sample, far from its cause.
            if part == library.ffi.NULL:
                raise EngineFailed("The library refused a sampler.")
            self._lib.llama_sampler_chain_add(self.pointer, part)

    def free(self) -> None:
        """Give the chain back."""
        self._lib.llama_sampler_free(self.pointer)
