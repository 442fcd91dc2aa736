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
        "prompt_cache_retention",
        "guided_decoding_backend",
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
        "functions": ([],),
        "function_call": ("none", "auto"),
        "guided_whitespace_pattern": _NOTHING,
        "regex": _NOTHING,
        "ebnf": _NOTHING,
        # other kinds of answer
        "audio": _NOTHING,
        "modalities": (["text"],),
        "prediction": _NOTHING,
        "web_search_options": _NOTHING,
        "verbosity": _NOTHING,
        "store": _OFF,
        "return_token_ids": _OFF,
        "return_tokens_as_token_ids": _OFF,
        # the prompt
        "chat_template": _NOTHING,
        "documents": ([],),
        "truncate_prompt_tokens": _NOTHING,
        "cache_prompt": _ON,
        "cache_salt": _NOTHING,
        "mm_processor_kwargs": ({},),
        # reasoning in other servers' words
        "thinking": _NOTHING,
        "include_reasoning": _ON,
        "separate_reasoning": _ON,
        "reasoning_format": ("auto",),
        "thinking_budget_tokens": _NOTHING,
        # stopping
        "n_predict": _NOTHING,
        "include_stop_str_in_output": _OFF,
        "no_stop_trim": _OFF,
        "skip_special_tokens": _ON,
        "spaces_between_special_tokens": _ON,
        "bad_words": ([],),
        "allowed_token_ids": _NOTHING,
        "t_max_predict_ms": _NOTHING,
        # choosing
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

UNHONOURED_IN_CHAT: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        **UNHONOURED,
        "echo": _OFF,
        "suffix": ("",),
        "best_of": (1,),
        "add_special_tokens": _OFF,
    }
)

UNHONOURED_IN_COMPLETIONS: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        **UNHONOURED,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "add_special_tokens": _ON,
        "prompt_embeds": _NOTHING,
        "top_logprobs": _NOTHING,
        "max_completion_tokens": _NOTHING,
        "reasoning_effort": _NOTHING,
        "chat_template_kwargs": ({},),
        "enable_thinking": _NOTHING,
    }
)

INSTEAD = MappingProxyType(
    {
        "repeat_penalty": "repetition_penalty",
        "n_predict": "max_tokens",
        "n_probs": "logprobs",
        "thinking": "enable_thinking",
        "functions": "tools",
        "function_call": "tool_choice",
        "max_completion_tokens": "max_tokens",
        "top_logprobs": "logprobs",
        "regex": "guided_regex",
        "ebnf": "guided_grammar",
    }
)


def refuse_unhonoured(
    fields: Mapping[str, msgspec.Raw],
    unhonoured: Mapping[str, tuple[JsonValue, ...]] = UNHONOURED,
    instead_of: Mapping[str, str] = INSTEAD,
) -> None:
    """Raise UnsupportedParameter for the first field that asks for something we do not do."""
    for name, raw in fields.items():
        if name not in unhonoured:
            continue
        value: JsonValue = decode(_value, bytes(raw))
        if value is not None and not any(_same(value, neutral) for neutral in unhonoured[name]):
            instead = instead_of.get(name)
            is_honoured = instead is not None and instead not in unhonoured
            raise UnsupportedParameter(
                f"The parameter '{name}' is not supported with this value.",
                param=name,
                hint=f"Use '{instead}'." if is_honoured else "Leave it out.",
            )


def _same(value: JsonValue, neutral: JsonValue) -> bool:
    return type(value) is type(neutral) and value == neutral
