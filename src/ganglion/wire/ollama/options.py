"""What `options` and `keep_alive` mean."""

import re
from typing import Final

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import Sampling, Stop
from ganglion.wire.fields import MAX_TOKENS, SEEDS
from ganglion.wire.ollama.asked import OllamaOptions

_ANY_SEED: Final = -1
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")


def sampling_of(asked: OllamaOptions) -> Sampling:
    """How to choose tokens, as asked."""
    _check_window(asked)
    has_no_window = asked.repeat_last_n == 0
    return Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=0 if asked.top_k == -1 else asked.top_k,
        min_p=asked.min_p,
        repetition_penalty=1.0 if has_no_window else asked.repeat_penalty,
        presence_penalty=0.0 if has_no_window else asked.presence_penalty,
        frequency_penalty=0.0 if has_no_window else asked.frequency_penalty,
        seed=None if asked.seed in (None, _ANY_SEED) else asked.seed % SEEDS,
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


def _check_window(asked: OllamaOptions) -> None:
    # Our penalties see everything that was said. A window asks for nothing where nothing is penalised.
    has_penalty = (
        asked.repeat_penalty not in (None, 1)
        or asked.presence_penalty not in (None, 0)
        or asked.frequency_penalty not in (None, 0)
    )
    if has_penalty and asked.repeat_last_n not in (None, 0, -1):
        raise UnsupportedParameter(
            f"'options.repeat_last_n' is {asked.repeat_last_n}, and penalties here see all that was said.",
            param="options.repeat_last_n",
            hint="Leave it out, or send -1.",
        )


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
