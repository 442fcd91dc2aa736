"""The shape of what completion clients get; a chunk of a stream looks like the whole."""

from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ganglion.core.events import FinishReason
from ganglion.wire.completions.logprobs import CompletionLogprobs
from ganglion.wire.fields import UsageTold
from ganglion.wire.logprobs import PromptLogprobs
from ganglion.wire.readout import TokenReadout
from ganglion.wire.usage import CompletionUsage

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What all chunks of one answer share, and how its client wants to hear it."""

    id: str
    created_s: int
    model: str
    fingerprint: str | None = None
    usage_told: UsageTold = "never"
    per_prompt: int = 1
    """How many choices each prompt has."""
    logprobs: int | None = None
    """How many alternatives to show beside each token; None shows no logprobs."""
    prompt_logprobs: int | None = None
    has_readout: bool = False
    has_token_ids: bool = False
    echoes: tuple[str | None, ...] = ()
    """What each choice begins with; None takes it from the scored tokens. Empty without `echo`."""

    @property
    def is_echoed(self) -> bool:
        """Whether the prompt stands before its completion."""
        return bool(self.echoes)

    def echo(self, choice: int) -> str | None:
        """What this choice begins with, where that is known already."""
        return self.echoes[choice] if self.echoes else ""


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One answer, or the next part of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: Finish | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    readout: list[TokenReadout] | UnsetType = UNSET
    """Of the tokens that were generated."""
    token_ids: tuple[int, ...] | UnsetType = UNSET
    """All that were generated, shown or not; of a stream on the last chunk."""
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The whole answer, or the data of one frame of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None
    choices: tuple[CompletionChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET


def finish_of(reason: FinishReason) -> Finish:
    """How an answer ended, in this wire's words: it knows no tool calls."""
    return "length" if reason == "length" else "stop"
