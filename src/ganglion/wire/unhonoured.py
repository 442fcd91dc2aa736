"""Fields of other servers and of later days that we know and do not honour.

Law: a sampling, stop, format or tool field is honoured or refused, never accepted and ignored. So each stands
here with the values that ask for nothing beyond what we do anyway; null is always one of them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import JsonValue
from ganglion.wire.decode import decode

HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
"""Fields that ask nothing of the answer."""

_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)

_NOTHING: tuple[JsonValue, ...] = ()
_OFF: tuple[JsonValue, ...] = (False,)
_ON: tuple[JsonValue, ...] = (True,)

UNHONOURED: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        # tools and formats
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "structured_outputs": _NOTHING,
        "guided_json": _NOTHING,
        "guided_regex": _NOTHING,
        "guided_choice": _NOTHING,
        "guided_grammar": _NOTHING,
        "guided_decoding_backend": _NOTHING,
        "guided_whitespace_pattern": _NOTHING,
        "grammar": _NOTHING,
        "json_schema": _NOTHING,
        "regex": _NOTHING,
        "ebnf": _NOTHING,
        # other kinds of answer
        "audio": _NOTHING,
        "modalities": (["text"],),
        "prediction": _NOTHING,
        "web_search_options": _NOTHING,
        "verbosity": _NOTHING,
        "store": _OFF,
        "echo": _OFF,
        "suffix": ("",),
        "prompt_logprobs": _NOTHING,
        "return_token_ids": _OFF,
        "return_tokens_as_token_ids": _OFF,
        # the prompt
        "chat_template": _NOTHING,
        "documents": ([],),
        "add_generation_prompt": _ON,
        "continue_final_message": _OFF,
        "add_special_tokens": _OFF,
        "truncate_prompt_tokens": _NOTHING,
        "cache_prompt": _ON,
        "cache_salt": _NOTHING,
        "mm_processor_kwargs": ({},),
        # reasoning in other servers' words
        "thinking": _NOTHING,
        "enable_thinking": _NOTHING,
        "include_reasoning": _ON,
        "separate_reasoning": _ON,
        "reasoning_format": ("auto",),
        "thinking_budget_tokens": _NOTHING,
        # stopping
        "min_tokens": (0,),
        "n_predict": _NOTHING,
        "include_stop_str_in_output": _OFF,
        "no_stop_trim": _OFF,
        "skip_special_tokens": _ON,
        "spaces_between_special_tokens": _ON,
        "bad_words": ([],),
        "allowed_token_ids": _NOTHING,
        "t_max_predict_ms": _NOTHING,
        # choosing
        "best_of": (1,),
        "use_beam_search": _OFF,
        "length_penalty": (1, 1.0),
        "early_stopping": _OFF,
        "repeat_penalty": (1, 1.0),
        "repeat_last_n": _NOTHING,
        "penalty_last_n": _NOTHING,
        "top_a": (0, 0.0),
        "top_n_sigma": (-1, -1.0),
        "tfs_z": (1, 1.0),
        "typical_p": (1, 1.0),
        "min_keep": (0,),
        "n_probs": (0,),
        "samplers": _NOTHING,
        "logits_processors": ([],),
        "custom_logit_processor": _NOTHING,
        "mirostat": (0,),
        "mirostat_tau": _NOTHING,
        "mirostat_eta": _NOTHING,
        "dynatemp_range": (0, 0.0),
        "dynatemp_exponent": _NOTHING,
        "smoothing_factor": (0, 0.0),
        "dry_multiplier": (0, 0.0),
        "dry_base": _NOTHING,
        "dry_allowed_length": _NOTHING,
        "dry_penalty_last_n": _NOTHING,
        "dry_sequence_breakers": _NOTHING,
        "xtc_probability": (0, 0.0),
        "xtc_threshold": _NOTHING,
        "lora": ([],),
        "vllm_xargs": ({},),
        "kv_transfer_params": _NOTHING,
    }
)

_INSTEAD = MappingProxyType(
    {
        "repeat_penalty": "repetition_penalty",
        "n_predict": "max_completion_tokens",
        "n_probs": "top_logprobs",
        "thinking": "chat_template_kwargs",
        "enable_thinking": "chat_template_kwargs",
    }
)


def refuse_unhonoured(
    fields: Mapping[str, msgspec.Raw],
    unhonoured: Mapping[str, tuple[JsonValue, ...]] = UNHONOURED,
    instead_of: Mapping[str, str] = _INSTEAD,
) -> None:
    """Raise UnsupportedParameter for the first field that asks for something we do not do."""
    for name, raw in fields.items():
        if name not in unhonoured:
            continue
        value: JsonValue = decode(_value, bytes(raw))
        if value is not None and not any(_same(value, neutral) for neutral in unhonoured[name]):
            instead = instead_of.get(name)
            raise UnsupportedParameter(
                f"The parameter '{name}' is not supported with this value.",
                param=name,
                hint=f"Use '{instead}'." if instead else "Leave it out.",
            )


def _same(value: JsonValue, neutral: JsonValue) -> bool:
    return type(value) is type(neutral) and value == neutral
