"""Fields of other servers and of later days that we know and do not honour.

Law: a sampling, stop, format or tool field is honoured or refused, never accepted and ignored. So each stands
here with the values that ask for nothing beyond what we do anyway; null is always one of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import JsonValue
from ganglion.wire.decode import decode
from ganglion.wire.unknown_fields import FieldShapes, check_unknown

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

UNSUPPORTED: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        # tools and formats
        "guided_whitespace_pattern": _NOTHING,
        "regex": _NOTHING,
        "ebnf": _NOTHING,
        # other kinds of answer
        "audio": _NOTHING,
        "modalities": (["text"],),
        "web_search_options": _NOTHING,
        "return_tokens_as_token_ids": _OFF,
        # the prompt
        "chat_template": _NOTHING,
        "documents": ([],),
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
        "no_stop_trim": _OFF,
        "spaces_between_special_tokens": _ON,
        "t_max_predict_ms": _NOTHING,
        # choosing
        "use_beam_search": _OFF,
        "length_penalty": (1, 1.0),
        "early_stopping": _OFF,
        "penalty_last_n": _NOTHING,
        "top_a": (0, 0.0),
        "tfs_z": (1, 1.0),
        "min_keep": (0,),
        "n_probs": (0,),
        "samplers": _NOTHING,
        "logits_processors": ([],),
        "custom_logit_processor": _NOTHING,
        "smoothing_factor": (0, 0.0),
        "lora": ([],),
        "vllm_xargs": ({},),
        "kv_transfer_params": _NOTHING,
    }
)

UNSUPPORTED_IN_CHAT: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        **UNSUPPORTED,
        "echo": _OFF,
        "suffix": ("",),
        "best_of": (1,),
        "add_special_tokens": _OFF,
    }
)

UNSUPPORTED_IN_COMPLETIONS: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        **UNSUPPORTED,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "prediction": _NOTHING,
        "verbosity": _NOTHING,
        "store": _OFF,
        "reasoning": _NOTHING,
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
        "n_predict": "max_tokens",
        "n_probs": "logprobs",
        "thinking": "enable_thinking",
        "penalty_last_n": "repeat_last_n",
        "functions": "tools",
        "function_call": "tool_choice",
        "max_completion_tokens": "max_tokens",
        "top_logprobs": "logprobs",
        "regex": "guided_regex",
        "ebnf": "guided_grammar",
    }
)


def refuse_unsupported(
    fields: Mapping[str, msgspec.Raw],
    unhonoured: Mapping[str, tuple[JsonValue, ...]] = UNSUPPORTED,
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


MAX_FIELDS = 512
MAX_FREE_FORM_BYTES = 2**18

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """The fields of one wire; `free_form` says how large each of those may be whose shape is the client's."""

    honoured: frozenset[str]
    unhonoured: Mapping[str, tuple[JsonValue, ...]]
    free_form: Mapping[str, int]
    instead: Mapping[str, str] = field(default_factory=lambda: INSTEAD)
    """What to use in place of some of those that are not honoured."""
    shapes: Callable[[], FieldShapes] = dict
    """What is read inside of them."""
    harmless_inside: frozenset[str] = frozenset()
    """Fields inside them that ask nothing of the answer."""

    def check(self, body: bytes, *, is_strict: bool) -> tuple[str, ...]:
        """The fields that nobody knows, also inside others; raises for what is too large or not honoured."""
        fields = decode(_fields, body)
        self._check_size(fields)
        refuse_unsupported(fields, self.unhonoured, self.instead)
        known = self.honoured | HARMLESS | self.unhonoured.keys()
        unknown = tuple(name for name in fields if name not in known)
        return check_unknown(unknown, fields, self.shapes(), self.harmless_inside, is_strict=is_strict)

    def _check_size(self, fields: dict[str, msgspec.Raw]) -> None:
        # Free-form JSON costs a hundred times its size to read, on the event loop: bound it before reading.
        if len(fields) > MAX_FIELDS:
            raise InvalidValue(f"The body holds {len(fields)} parameters; {MAX_FIELDS} is the most.")
        for name, raw in fields.items():
            limit = MAX_FREE_FORM_BYTES if name in self.unhonoured else self.free_form.get(name)
            if limit is not None and len(bytes(raw)) > limit:
                raise InvalidValue(f"'{name}' is larger than {limit} bytes.", param=name)
