"""Fields of a chat body that goes to another server, as far as all servers spell them alike."""

from typing import Any

from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import Request

Body = dict[str, Any]
"""Ready to be encoded; None means that a field is left out."""


def unsupported(param: str, what: str) -> UnsupportedParameter:
    """Why a field does not travel."""
    return UnsupportedParameter(
        f"{what} cannot be asked of the server that holds this model.",
        param=param,
        hint="Leave it out, or ask for a model of another node.",
    )


def choosing(request: Request) -> Body:
    """How tokens are chosen and what ends an answer."""
    sampling, stop = request.sampling, request.stop
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "stop": stop.strings or None,
        "ignore_eos": stop.ignore_eos or None,
        "logprobs": True if request.top_logprobs is not None else None,
        "top_logprobs": request.top_logprobs,
        "max_tokens": request.max_tokens,
    }
