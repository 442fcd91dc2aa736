"""llama.cpp's own samplers in a row."""

from typing import Any, Final

from ganglion.core.errors import EngineFailed
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.native.library import Library

_MIROSTAT_LIKELIEST: Final = 100
"""From how many of the likeliest tokens the first mirostat estimates a text's surprise, by its paper."""


class SamplerChain:
    """Samplers, drawing at the end; only those that are asked for are in the row."""

    def __init__(
        self, library: Library, sampling: ResolvedSampling, *, vocabulary_size: int, seed: int
    ) -> None:
        self._lib = library.lib
        params = self._lib.llama_sampler_chain_default_params()
        params.no_perf = True
        self.pointer = self._lib.llama_sampler_chain_init(params)
        if sampling.samplers.mirostat:
            parts = self._mirostat(sampling, vocabulary_size, seed)
        else:
            parts = [*self._cuts(sampling, seed), self._temperature(sampling)]
            parts.append(self._lib.llama_sampler_init_dist(seed))
        for part in parts:
            # Adding NULL to a chain crashes at the next sample, far from its cause.
            if part == library.ffi.NULL:
                raise EngineFailed("The library refused a sampler.")
            self._lib.llama_sampler_chain_add(self.pointer, part)

    def free(self) -> None:
        """Give the chain back."""
        self._lib.llama_sampler_free(self.pointer)

    def _cuts(self, sampling: ResolvedSampling, seed: int) -> list[Any]:
        """What leaves tokens out, in llama.cpp's order."""
        lib, more = self._lib, sampling.samplers
        parts = []
        if more.top_n_sigma > 0.0:
            parts.append(lib.llama_sampler_init_top_n_sigma(more.top_n_sigma))
        if sampling.top_k > 0:
            parts.append(lib.llama_sampler_init_top_k(sampling.top_k))
        if more.typical_p < 1.0:
            parts.append(lib.llama_sampler_init_typical(more.typical_p, 1))
        if sampling.top_p < 1.0:
            parts.append(lib.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0.0:
            parts.append(lib.llama_sampler_init_min_p(sampling.min_p, 1))
        if more.xtc_probability > 0.0:
            parts.append(lib.llama_sampler_init_xtc(more.xtc_probability, more.xtc_threshold, 1, seed))
        return parts

    def _temperature(self, sampling: ResolvedSampling) -> Any:
        more = sampling.samplers
        if more.dynatemp_range > 0.0:
            return self._lib.llama_sampler_init_temp_ext(
                sampling.temperature, more.dynatemp_range, more.dynatemp_exponent
            )
        return self._lib.llama_sampler_init_temp(sampling.temperature)

    def _mirostat(self, sampling: ResolvedSampling, vocabulary_size: int, seed: int) -> list[Any]:
        """Mirostat draws by itself, from all tokens: it is another way to cut."""
        lib, more = self._lib, sampling.samplers
        if more.mirostat == 1:
            draw = lib.llama_sampler_init_mirostat(
                vocabulary_size, seed, more.mirostat_tau, more.mirostat_eta, _MIROSTAT_LIKELIEST
            )
        else:
            draw = lib.llama_sampler_init_mirostat_v2(seed, more.mirostat_tau, more.mirostat_eta)
        return [self._temperature(sampling), draw]
