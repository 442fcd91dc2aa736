"""What `options` and `keep_alive` mean."""

import re
from dataclasses import replace
from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Sampling, Stop
from ganglion.core.samplers import PLAIN
from ganglion.wire.fields import MAX_TOKENS, SEEDS, samplers_of
from ganglion.wire.ollama.asked import OllamaOptions

_ANY_SEED: Final = -1
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")


def sampling_of(asked: OllamaOptions) -> Sampling:
    """How to choose tokens, as asked."""
    samplers = samplers_of(asked)
    penalties = asked.repeat_penalty or 1, asked.presence_penalty or 0, asked.frequency_penalty or 0
    if penalties == (1, 0, 0):
        # Clients send the window of penalties that they do not ask for.
        samplers = replace(samplers, repeat_last_n=PLAIN.repeat_last_n)
    return Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=0 if asked.top_k == -1 else asked.top_k,
        min_p=asked.min_p,
        repetition_penalty=asked.repeat_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        seed=None if asked.seed in (None, _ANY_SEED) else asked.seed % SEEDS,
        samplers=samplers,
    )


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
