"""Ollama's `options` and `keep_alive`: which are supported, and what they mean."""

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Stop
from ganglion.core.sampling import PARAMS, PLAIN, Sampling, sampling_from
from ganglion.wire.field_policy import NeutralValues
from ganglion.wire.fields import MAX_TOKENS, samplers_of
from ganglion.wire.ollama.schema import OllamaOptions

UNSUPPORTED_FIELDS: NeutralValues = MappingProxyType(
    {
        "template": ("",),
        "context": ([],),
        "shift": (False,),
        "width": (0,),
        "height": (0,),
        "steps": (0,),
        "_debug_render_only": (False,),
        "readout": (False,),
        "steering": ([],),
    }
)
"""Of the bodies of chat and generate."""

UNSUPPORTED_OPTIONS: NeutralValues = MappingProxyType(
    {
        "tfs_z": (1, 1.0),
        "penalize_newline": (True,),
    }
)

IGNORED_OPTIONS = frozenset(
    {
        # how a model lies in memory: the operator's to decide
        *("numa", "num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "f16_kv"),
        *("use_mmap", "use_mlock", "vocab_only", "logits_all", "embedding_only"),
        # what is kept when a context is shifted, which never happens here
        "num_keep",
    }
)

HINTS = MappingProxyType(
    {
        "template": "Send 'raw': true with a prompt that is already rendered.",
        "context": "Send the conversation to /api/chat.",
        "readout": "Ask for it on /v1/chat/completions.",
        "steering": "Ask for it on /v1/chat/completions.",
        "shift": "Raise num_predict or shorten the messages.",
    }
)

_ANY_SEED: Final = -1
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")


def sampling_of(options: OllamaOptions) -> Sampling:
    """The sampling that the options ask for."""
    samplers = samplers_of(options)
    penalties = options.repeat_penalty or 1, options.presence_penalty or 0, options.frequency_penalty or 0
    if penalties == (1, 0, 0):
        # Clients send the window of penalties that they do not ask for.
        samplers = replace(samplers, repeat_last_n=PLAIN.repeat_last_n)
    values = {name: getattr(options, name, None) for name in PARAMS}
    own = {
        "repetition_penalty": options.repeat_penalty,
        "seed": None if options.seed == _ANY_SEED else options.seed,
        "samplers": samplers,
    }
    return sampling_from(values | own)


def stop_of(options: OllamaOptions) -> Stop:
    """The stop conditions that the options ask for."""
    stop = options.stop
    return Stop((stop,) if isinstance(stop, str) else tuple(stop or ()))


def max_tokens_of(options: OllamaOptions) -> int | None:
    """The limit of the answer's tokens: -1, -2 and 0 all mean as long as there is room."""
    if options.num_predict is not None and options.num_predict <= 0:
        return MAX_TOKENS
    return options.num_predict


def is_unloading(keep_alive: float | str | None) -> bool:
    """Whether a model is asked to leave at once; raises InvalidValue for what is no duration."""
    if isinstance(keep_alive, str):
        return _seconds(keep_alive) == 0
    return keep_alive == 0 and not isinstance(keep_alive, bool)


def _seconds(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    unsigned = text.removeprefix("-").removeprefix("+")
    parts = _PART.findall(unsigned)
    if not parts or "".join(number + unit for number, unit in parts) != unsigned:
        raise InvalidValue(
            "'keep_alive' is not a duration.", param="keep_alive", hint="Send seconds, or a text such as 5m."
        )
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
