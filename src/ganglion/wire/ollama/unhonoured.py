"""Fields of Ollama's API that we know and do not honour, and the ones that ask nothing of an answer.

Law: what would change an answer is honoured or refused, never accepted and ignored. So each field that we do
not honour stands here with the values that ask for nothing beyond what we do anyway; null is always one.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import JsonValue
from ganglion.wire.decode import decode

Neutral = Mapping[str, tuple[JsonValue, ...]]

FIELDS: Neutral = MappingProxyType(
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

OPTIONS: Neutral = MappingProxyType(
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


def refuse_unhonoured(fields: Mapping[str, msgspec.Raw], table: Neutral, prefix: str = "") -> None:
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
