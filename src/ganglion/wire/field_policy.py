"""The policy of a wire on the fields of its bodies: supported, ignored, refused by name, or unknown.

Law: a sampling, stop, format or tool field is honoured or refused, never accepted and ignored. So each that
is not supported stands in a table with its neutral values, which ask for nothing beyond what we do anyway;
null is always one of them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import JsonValue
from ganglion.wire.decode import FIELDS, decode
from ganglion.wire.unknown_fields import FieldShapes, check_unknown, fields_of

NeutralValues = Mapping[str, tuple[JsonValue, ...]]
"""Fields that are not supported, each with the values that ask for nothing."""

IGNORED = frozenset(
    {
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_retention",
        "guided_decoding_backend",
    }
)
"""Fields of OpenAI's wires that ask nothing of the answer."""

_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})
_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)

_NOTHING: tuple[JsonValue, ...] = ()
_OFF: tuple[JsonValue, ...] = (False,)
_ON: tuple[JsonValue, ...] = (True,)

UNSUPPORTED: NeutralValues = MappingProxyType(
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

UNSUPPORTED_IN_CHAT: NeutralValues = MappingProxyType(
    {
        **UNSUPPORTED,
        "echo": _OFF,
        "suffix": ("",),
        "best_of": (1,),
        "add_special_tokens": _OFF,
    }
)

UNSUPPORTED_IN_COMPLETIONS: NeutralValues = MappingProxyType(
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


_MAX_FIELDS = 512
MAX_FREE_FORM_BYTES = 2**18
_NEUTRAL_BYTES = 64
"""Neutral values are short, so nothing longer is read: some fields can be megabytes."""
_SHOWN = 64


class FieldPolicy:
    """The fields of one kind of body."""

    def __init__(
        self,
        body: type[msgspec.Struct],
        *,
        unsupported: NeutralValues = _NO_FIELDS,
        ignored: Iterable[str] = (),
        ignored_inside: frozenset[str] = frozenset(),
        max_bytes: Mapping[str, int] = _NO_FIELDS,
        instead: Mapping[str, str] = _NO_FIELDS,
        hints: Mapping[str, str] = _NO_FIELDS,
        shapes: Callable[[], FieldShapes] | None = None,
        prefix: str = "",
    ) -> None:
        """What a body's own struct has is supported, whatever the tables say.

        `max_bytes` bounds fields whose shape is the client's; `instead` names the field to use in place of an
        unsupported one, `hints` says it in a sentence; `shapes` says what is read inside fields where the
        struct does not; `prefix` is where the body stands.
        """
        supported = body.__struct_fields__
        self._unsupported = {name: neutral for name, neutral in unsupported.items() if name not in supported}
        self._known = frozenset((*supported, *ignored, *unsupported))
        self._ignored_inside = ignored_inside
        self._max_bytes = max_bytes
        uses = {name: f"Use '{other}'." for name, other in instead.items() if other not in unsupported}
        self._hints = {**uses, **hints}
        self._make_shapes = shapes or partial(fields_of, body)
        self._prefix = prefix

    @cached_property
    def _shapes(self) -> FieldShapes:
        return self._make_shapes()

    def check(self, body: bytes, *, is_strict: bool) -> tuple[str, ...]:
        """The unknown fields, also inside others; raises for what is too large or unsupported."""
        return self.check_fields(self.read(body), is_strict=is_strict)

    def read(self, body: bytes) -> dict[str, msgspec.Raw]:
        """The fields of a body; raises InvalidValue for too many, or for one that is too large."""
        # Free-form JSON costs a hundred times its size to read, on the event loop: bound it before reading.
        fields = decode(FIELDS, body)
        if len(fields) > _MAX_FIELDS:
            raise InvalidValue(f"The body holds {len(fields)} parameters; {_MAX_FIELDS} is the most.")
        for name, limit in self._max_bytes.items():
            if name in fields and len(memoryview(fields[name])) > limit:
                raise InvalidValue(f"'{name}' is larger than {limit} bytes.", param=name)
        return fields

    def check_fields(
        self, fields: Mapping[str, msgspec.Raw], more: Iterable[str] = (), *, is_strict: bool
    ) -> tuple[str, ...]:
        """The unknown fields, also inside others, and `more` of them; raises for what is unsupported."""
        unknown = (*self.unknown(fields), *more)
        return check_unknown(unknown, fields, self._shapes, self._ignored_inside, is_strict=is_strict)

    def unknown(self, fields: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
        """The fields that nobody knows; raises for one that asks for what we do not do."""
        for name, raw in fields.items():
            if name in self._unsupported and not is_neutral(raw, self._unsupported[name]):
                param = f"{self._prefix}{name}"
                raise UnsupportedParameter(
                    f"The parameter '{param}' is not supported with this value.",
                    param=param,
                    hint=self._hints.get(name, "Leave it out."),
                )
        return tuple(f"{self._prefix}{name[:_SHOWN]}" for name in fields if name not in self._known)


def is_neutral(raw: msgspec.Raw, neutral: tuple[JsonValue, ...]) -> bool:
    """Whether a value asks for nothing: null, or one of these."""
    if len(memoryview(raw)) > _NEUTRAL_BYTES:
        return False
    value: JsonValue = decode(_value, raw)
    return value is None or any(type(value) is type(each) and value == each for each in neutral)
