"""What a client asks of an engine, in no wire's words."""

from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
Role = Literal["system", "developer", "user", "assistant", "tool"]

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
"""Plain JSON, for the few places whose shape belongs to the model's own template."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; an assistant's earlier reasoning travels beside its content."""

    role: Role
    content: str
    reasoning: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's own template."""

    messages: tuple[Message, ...]
    template_arguments: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text as it stands, no template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as they stand."""

    tokens: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the next token; None takes the model's own default, then the calibrated one."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """What ends an answer besides its length; strings are matched across token borders and not shown."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to one prompt. Lower `priority` is more urgent; `tenant` is part of every cache key."""

    id: str
    model: str
    prompt: Prompt
    sampling: Sampling = Sampling()
    stop: Stop = Stop()
    max_tokens: int | None = None
    top_logprobs: int | None = None
    """How many alternatives to report beside each token's logprob; None reports no logprobs at all."""
    priority: int = 0
    tenant: str = ""
    keep_markers: bool = False
    """Leave reasoning inside the content with its markers."""


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling with every default filled in: what an engine runs."""

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 64
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Token ids in: what a token engine runs. `salt` keeps cached KV of different owners apart."""

    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    sampling: ResolvedSampling = ResolvedSampling()
    stop: Stop = Stop()
    top_logprobs: int | None = None
    priority: int = 0
    salt: str = ""


def resolve(asked: Sampling, model: Sampling) -> ResolvedSampling:
    """Fill each value from the request, then the model's own defaults, then the calibrated ones."""
    calibrated = ResolvedSampling()
    return ResolvedSampling(
        temperature=_first(asked.temperature, model.temperature, calibrated.temperature),
        top_p=_first(asked.top_p, model.top_p, calibrated.top_p),
        top_k=_first(asked.top_k, model.top_k, calibrated.top_k),
        min_p=_first(asked.min_p, model.min_p, calibrated.min_p),
        repetition_penalty=_first(
            asked.repetition_penalty, model.repetition_penalty, calibrated.repetition_penalty
        ),
        presence_penalty=_first(asked.presence_penalty, model.presence_penalty, calibrated.presence_penalty),
        frequency_penalty=_first(
            asked.frequency_penalty, model.frequency_penalty, calibrated.frequency_penalty
        ),
        seed=asked.seed if asked.seed is not None else model.seed,
        logit_bias=asked.logit_bias,
    )


def _first(asked: T | None, model: T | None, calibrated: T) -> T:
    if asked is not None:
        return asked
    return calibrated if model is None else model
