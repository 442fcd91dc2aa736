"""What vLLM cannot do for a request, by name.

Law: what vLLM cannot do is refused by name before anything runs, and never left out in silence.
"""

from typing import Final

from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import TokenRequest
from ganglion.core.sampling import PLAIN, Samplers

_ABSENT: Final[tuple[str, ...]] = (
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "dry_multiplier",
    "mirostat",
    "dynatemp_range",
)
"""Samplers that vLLM has not; each does nothing at its default."""


def check_request(request: TokenRequest) -> None:
    """Raise UnsupportedParameter for the first thing that vLLM cannot do for this request."""
    samplers = request.sampling.samplers
    for name in _ABSENT:
        if _is_active(samplers, name):
            raise _unsupported(name, f"vLLM has no sampler {name!r}")
    if samplers.repeat_last_n > 0:
        raise _unsupported(
            "repeat_last_n", "vLLM's penalties see all tokens", "Give -1 for all tokens, or 0 for none."
        )
    if request.grammar is not None and request.min_tokens:
        raise _unsupported("min_tokens", "vLLM cannot hold an answer to a format and to a least length")
    if request.grammar is not None and samplers.allowed_token_ids is not None:
        raise _unsupported(
            "allowed_token_ids", "vLLM cannot hold an answer to a format and to a set of tokens"
        )


def _is_active(samplers: Samplers, name: str) -> bool:
    value, neutral = getattr(samplers, name), getattr(PLAIN, name)
    if name == "top_n_sigma":
        return bool(value > 0)
    if name == "dry_multiplier":
        return samplers.has_dry
    return bool(value != neutral)


def _unsupported(name: str, why: str, hint: str = "") -> UnsupportedParameter:
    return UnsupportedParameter(
        f"{why}; the model's engine cannot honour {name!r}.",
        param=name,
        hint=hint or f"Leave {name!r} out, or choose a model that llama.cpp runs.",
    )
