"""What can be asked of a generation, by keyword."""

from collections.abc import Sequence
from typing import Final, Literal, TypedDict

from ganglion.core.errors import InvalidValue, UnknownParameter
from ganglion.wire.salience import salience_pb2 as pb

OPEN_END: Final = 2**32 - 1
MAX_TOKENS_DEFAULT: Final = 256

Positions = Literal["generated", "all"] | Sequence[tuple[int, int | None]] | None
"""At the generated tokens, at all of the session's, in half-open ranges (None is an open end), nowhere."""


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate()` and `run()`; what is left out is the model's own default."""

    max_tokens: int
    """At most so many tokens (256); 0 generates nothing, and tells what the ranges ask for."""
    temperature: float
    """0 always takes the likeliest token."""
    top_p: float
    top_k: int
    min_p: float
    seed: int
    """The same seed, session and options give the same tokens."""
    stop_token_ids: Sequence[int]
    """Each of them ends the answer, and is its last token."""
    ignore_eos: bool
    """Goes on where the model would end."""
    logprobs: Positions
    """Where tokens come with their logprob."""
    top_k_logprobs: int
    """How many of the likeliest tokens come beside each logprob."""
    readout: Positions
    """Where tokens come with their readout."""
    priority: int
    """Lower is more urgent; 0 is the default."""


_KNOWN: Final = frozenset(GenerateOptions.__annotations__)


def generate_request(
    session_id: str,
    options: GenerateOptions,
    *,
    append: Sequence[int],
    offset: int,
    is_truncating: bool,
) -> pb.GenerateRequest:
    """The call that appends and generates; raises InvalidValue for what cannot be written on the wire."""
    for name in options:
        if name not in _KNOWN:
            raise UnknownParameter(f"generate() knows no option {name!r}.", param=name)
    generated_from = offset + len(append)
    try:
        return pb.GenerateRequest(
            session_id=session_id,
            append_tokens=append,
            offset=offset,
            truncating=is_truncating,
            max_tokens=options.get("max_tokens", MAX_TOKENS_DEFAULT),
            logprobs_ranges=_ranges(options.get("logprobs"), generated_from),
            logprob_top_k=options.get("top_k_logprobs", 0),
            readout_ranges=_ranges(options.get("readout"), generated_from),
            temperature=options.get("temperature"),
            top_p=options.get("top_p"),
            top_k=options.get("top_k"),
            min_p=options.get("min_p"),
            seed=options.get("seed"),
            stop_token_ids=options.get("stop_token_ids", ()),
            priority=options.get("priority", 0),
            ignore_eos=options.get("ignore_eos", False),
        )
    except (ValueError, TypeError) as error:
        raise InvalidValue(f"A token or an option cannot be sent: {error}.") from error


def _ranges(positions: Positions, generated_from: int) -> list[pb.Range]:
    if positions is None:
        return []
    if positions == "generated":
        return [pb.Range(start=generated_from, end=OPEN_END)]
    if positions == "all":
        return [pb.Range(start=0, end=OPEN_END)]
    return [pb.Range(start=start, end=OPEN_END if end is None else end) for start, end in positions]
