"""The options of a generation, and their message."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

from ganglion.core.errors import InvalidValue, UnknownParameter
from ganglion.core.sampling import PARAMS
from ganglion.wire.salience import salience_pb2 as pb

_OPEN_END: Final = 2**32 - 1
_MAX_TOKENS_DEFAULT: Final = 256

Positions = Literal["generated", "all"] | Sequence[tuple[int, int | None]] | None
"""At the generated tokens, at all of the session's, in half-open ranges (None is an open end), nowhere."""


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate()` and `run()`; left out, the model's own defaults hold."""

    max_tokens: int
    """At most so many tokens (256); 0 generates nothing, and returns what the ranges request."""
    temperature: float
    """0 always takes the likeliest token."""
    top_p: float
    top_k: int
    min_p: float
    seed: int
    """The same seed, session and options give the same tokens."""
    stop_token_ids: Sequence[int]
    """Each of these tokens ends the answer, and is its last one."""
    ignore_eos: bool
    """Continues where the model would end."""
    stop: str | Sequence[str]
    """Each of these texts ends the answer. `text()` ends before it; its tokens are in the session."""
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    json_schema: Mapping[str, object] | str
    """The answer is JSON that this schema accepts. At most one of this and the next four."""
    pattern: str
    """The answer is matched by the whole of this regular expression."""
    choice: Sequence[str]
    """The answer is one of these texts."""
    lark: str
    """The answer follows a grammar in llguidance's Lark, from its rule `start`."""
    gbnf: str
    """The answer follows a grammar in llama.cpp's GBNF, from its rule `root`."""
    prefix: str
    """The answer's text begins with this, in whatever tokens; a format begins after it."""
    heal: bool
    """Token healing, of `generate()`: the last token is taken back and written again, by a longer one where
    the model would rather have that. For prompts that end within a word."""
    logprobs: Positions
    """The positions whose tokens have a logprob."""
    top_k_logprobs: int
    """How many of the likeliest tokens each logprob has beside it."""
    readout: Positions
    """The positions whose tokens have a readout."""
    priority: int
    """Lower is more urgent; 0 is the default."""


_KNOWN: Final = frozenset(GenerateOptions.__annotations__)
_FORMATS: Final = ("json_schema", "pattern", "choice", "lark", "gbnf")


def generate_request(
    session_id: str,
    options: GenerateOptions,
    *,
    append: Sequence[int],
    offset: int,
    is_truncating: bool,
) -> pb.GenerateRequest:
    """The call that appends and generates; raises InvalidValue for values that cannot be sent."""
    for name in options:
        if name not in _KNOWN:
            raise UnknownParameter(f"generate() has no option {name!r}.", param=name)
    generated_from = offset + len(append)
    try:
        return pb.GenerateRequest(
            session_id=session_id,
            append_tokens=append,
            offset=offset,
            truncating=is_truncating,
            max_tokens=options.get("max_tokens", _MAX_TOKENS_DEFAULT),
            logprobs_ranges=_ranges(options.get("logprobs"), generated_from),
            logprob_top_k=options.get("top_k_logprobs", 0),
            readout_ranges=_ranges(options.get("readout"), generated_from),
            stop_token_ids=options.get("stop_token_ids", ()),
            priority=options.get("priority", 0),
            ignore_eos=options.get("ignore_eos", False),
            stop=_texts(options.get("stop", ())),
            prefix=options.get("prefix", ""),
            **_format(options),
            **_sampling(options),
        )
    except (ValueError, TypeError) as error:
        raise InvalidValue(f"A token or an option cannot be sent: {error}.") from error


def _sampling(options: GenerateOptions) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in PARAMS}


def _texts(texts: str | Sequence[str]) -> Sequence[str]:
    return (texts,) if isinstance(texts, str) else texts


def _format(options: GenerateOptions) -> dict[str, Any]:
    given = [name for name in _FORMATS if name in options]
    if len(given) > 1:
        raise InvalidValue(f"{given[0]!r} and {given[1]!r} both say what the answer is.", param=given[1])
    if "json_schema" in options:
        schema = options["json_schema"]
        return {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
    if "choice" in options:
        return {"choice": pb.Choice(options=_texts(options["choice"]))}
    return {name: options[name] for name in given}


def _ranges(positions: Positions, generated_from: int) -> list[pb.Range]:
    if positions is None:
        return []
    if positions == "generated":
        return [pb.Range(start=generated_from, end=_OPEN_END)]
    if positions == "all":
        return [pb.Range(start=0, end=_OPEN_END)]
    return [pb.Range(start=start, end=_OPEN_END if end is None else end) for start, end in positions]
