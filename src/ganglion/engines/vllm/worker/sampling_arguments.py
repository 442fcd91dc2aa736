"""A request's sampling in vLLM's words."""

import math
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from ganglion.engines.supervision.ipc import Submit


def sampling_params(
    submit: Submit, ends: frozenset[int], unnamed: tuple[int, ...], *, can_bias: bool
) -> SamplingParams:
    """What vLLM is asked to do; raises vLLM's own errors for what it refuses.

    Ends that are to be ignored, and control tokens that the format does not name, are not chosen at all where
    `can_bias` says that this can be said.
    """
    sampling = submit.sampling
    bias: dict[int, float] = dict(sampling.logit_bias)
    # A format that is fulfilled allows an end and nothing else: that end is never ignored.
    ignores_end = submit.stop.ignore_eos and submit.grammar is None
    if can_bias:
        bias.update(dict.fromkeys(ends if ignores_end else unnamed, -math.inf))
    # Several tokens may share the highest score, of which vLLM's narrowest choice draws one; this takes one.
    takes_likeliest = sampling.top_p == 0.0 or sampling.top_k == 1
    has_penalties = sampling.samplers.repeat_last_n != 0
    arguments: dict[str, Any] = {
        "temperature": 0.0 if takes_likeliest else sampling.temperature,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "repetition_penalty": sampling.repetition_penalty if has_penalties else 1.0,
        "presence_penalty": sampling.presence_penalty if has_penalties else 0.0,
        "frequency_penalty": sampling.frequency_penalty if has_penalties else 0.0,
        "logit_bias": bias or None,
        "allowed_token_ids": _list(sampling.samplers.allowed_token_ids),
        "stop_token_ids": list(submit.stop.token_ids),
        "ignore_eos": ignores_end,
        # vLLM generates one token at least; where none is wanted it is dropped.
        "max_tokens": max(submit.max_tokens, 1),
        "min_tokens": min(submit.min_tokens, max(submit.max_tokens, 1)),
        "logprobs": submit.top_logprobs,
        "prompt_logprobs": submit.score_top if submit.score_ranges else None,
        "detokenize": False,
        "output_kind": RequestOutputKind.DELTA,
        "skip_clone": True,
    }
    if submit.grammar is not None:
        arguments["structured_outputs"] = StructuredOutputsParams(grammar=submit.grammar)
    return SamplingParams(**arguments)


def _list(values: tuple[int, ...] | None) -> list[int] | None:
    return None if values is None else list(values)
