"""The events of a model's answer: one typed stream that every wire projects.

Law: `Progress* Started (Progress | Scored)* (Opened Delta* Closed)* Finished`, blocks one at a time with
rising indices, and `Failed` may end the stream at any point, also first. Nothing follows `Finished` or
`Failed`.
"""

from dataclasses import dataclass
from typing import Literal

from ganglion.core.errors import GanglionError
from ganglion.core.sampling import ResolvedSampling

Kind = Literal["text", "reasoning", "tool_call"]
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the likeliest tokens at a position."""

    id: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the model's vocabulary; logprob and readout are None and empty unless asked for.

    The readout is the residual stream's at the token's own position, [layers x concepts], by layer.
    """

    id: int
    piece: bytes
    position: int
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    readout: tuple[float, ...] = ()
    rank: int | None = None
    """One more than tokens were likelier; told of a prompt's tokens where alternatives were asked for."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is safe to show, with the tokens whose last character it carries.

    Several tokens share a piece when one character spans them; special text (a control token's name) is a
    piece of its own, so that marker matching sees it and content does not.
    """

    text: str
    tokens: tuple[Token, ...]
    is_special: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; cached tokens are part of the prompt, reasoning tokens part of the completion."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds spent waiting, prefilling and decoding, as the engine saw them."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The request is waiting, being prefilled, or answered with what is still held back; may repeat."""

    stage: Literal["queued", "prefilled", "generated"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """The request is running; comes before its first token."""

    prompt_tokens: int
    cached_tokens: int = 0
    readout_concepts: int = 0
    """How many values of a token's readout belong to one layer, where readouts were asked for."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt as it was read, where somebody asked for it."""
    sampling: ResolvedSampling | None = None
    """How its tokens are chosen, every default filled in; None where nobody can say."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Tokens of the prompt with their logprobs and readouts, as asked for, in order; may repeat.

    A position is told once, with all that was asked of it. The token at position 0 has no logprob.
    """

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A block of the answer begins; call_id and name belong to tool calls."""

    index: int
    kind: Kind
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of the open block."""

    index: int
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """The block is complete."""

    index: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """The text and tokens that one step added to one sequence; only token engines send this."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason
    usage: Usage
    timing: Timing = Timing()
    stop_sequence: str | None = None
    stop_token: int | None = None
    """The token that ended it, where one did: the model's own end, or one that was asked for."""
    token_ids: tuple[int, ...] | None = None
    """All tokens that were generated, shown or not, where somebody asked for them."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, with the reason."""

    error: GanglionError


Event = Progress | Started | Scored | Opened | Delta | Closed | Finished | Failed
TokenEvent = Progress | Started | Scored | Pieces | Finished | Failed
