"""What `options` and `keep_alive` mean."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import JsonValue, Stop
from ganglion.core.sampling import PARAMS, PLAIN, Sampling, sampling_from
from ganglion.wire.decode import decode
from ganglion.wire.fields import MAX_TOKENS, samplers_of
from ganglion.wire.ollama.schema import OllamaOptions

# Law: what would change an answer is honoured or refused, never accepted and ignored. So each field that we
# do not honour stands here with the values that ask for nothing beyond what we do anyway; null is always
# one.

Neutral = Mapping[str, tuple[JsonValue, ...]]

UNSUPPORTED_FIELDS: Neutral = MappingProxyType(
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

UNSUPPORTED_OPTIONS: Neutral = MappingProxyType(
    {
        "tfs_z": (1, 1.0),
        "penalize_newline": (True,),
    }
)

HARMLESS_OPTIONS = frozenset(
    {
        # how a model lies in memory: the operator's to decide
        *("numa", "num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "f16_kv"),
        *("use_mmap", "use_mlock", "vocab_only", "logits_all", "embedding_only"),
        # what is kept when a context is shifted, which never happens here
        "num_keep",
    }
)

_INSTEAD = MappingProxyType(
    {
        "template": "Send 'raw': true with a prompt that is already rendered.",
        "context": "Send the conversation to /api/chat.",
        "readout": "Ask for it on /v1/chat/completions.",
        "steering": "Ask for it on /v1/chat/completions.",
        "shift": "Raise num_predict or shorten the messages.",
    }
)

_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)
# Values that ask for nothing are short, so nothing longer needs to be read: `context` can be megabytes.
_NEUTRAL_BYTES = 64


def refuse_unsupported(fields: Mapping[str, msgspec.Raw], table: Neutral, prefix: str = "") -> None:
    """Raise UnsupportedParameter for the first field that asks for something we do not do."""
    for name, raw in fields.items():
        if name in table and not _is_neutral(bytes(raw), table[name]):
            raise UnsupportedParameter(
                f"The parameter '{prefix}{name}' is not supported with this value.",
                param=f"{prefix}{name}",
                hint=_INSTEAD.get(name, "Leave it out."),
            )


def _is_neutral(raw: bytes, neutral: tuple[JsonValue, ...]) -> bool:
    if len(raw) > _NEUTRAL_BYTES:
        return False
    value: JsonValue = decode(_value, raw)
    return value is None or any(type(value) is type(each) and value == each for each in neutral)


_ANY_SEED: Final = -1
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")


def sampling_of(options: OllamaOptions) -> Sampling:
    """How to choose tokens."""
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


def stop_of(asked: OllamaOptions) -> Stop:
    """What ends the answer, as asked."""
    stop = asked.stop
    return Stop((stop,) if isinstance(stop, str) else tuple(stop or ()))


def max_tokens_of(asked: OllamaOptions) -> int | None:
    """How long the answer may be: -1, -2 and 0 all mean as long as there is room."""
    if asked.num_predict is not None and asked.num_predict <= 0:
        return MAX_TOKENS
    return asked.num_predict


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
