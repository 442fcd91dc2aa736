"""A request to an engine, in no wire's words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from ganglion.core.sampling import ResolvedSampling, Sampling

Role = Literal["system", "developer", "user", "assistant", "tool"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
NEAREST_EFFORT: Mapping[Effort, str] = MappingProxyType(
    {
        "none": "none",
        "minimal": "low",
        "low": "low",
        "medium": "medium",
        "high": "high",
        "xhigh": "high",
        "max": "high",
    }
)
"""The nearest of the three words that models with an effort were trained on."""

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
"""Plain JSON, for the few places whose shape belongs to the model's own template."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made earlier; `arguments` is JSON text, or a custom tool's free text."""

    call_id: str
    name: str
    arguments: str


ImageDetail = Literal["auto", "low", "high", "original"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A picture or a sound in a message: the bytes of its file, and where it stands in the text."""

    data: bytes = field(repr=False)
    at: int
    """How many characters of the message's content stand before it."""
    kind: Literal["image", "audio"] = "image"
    path: str = field(default="", compare=False)
    """Where its body names it, for errors."""
    url: str = ""
    """Where its file is while nobody has fetched it; there is no data until then."""
    detail: ImageDetail = "auto"
    """How closely its client wants it looked at: a wish, which a model with one resolution passes over."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; an assistant's earlier reasoning and calls travel beside its content."""

    role: Role
    content: str
    reasoning: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    """In the order of their places; several at one place follow each other."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that the schema accepts; `{}` accepts any value."""

    schema: JsonValue


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that the whole pattern matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lark:
    """Text of a grammar in llguidance's Lark, from its rule `start`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Gbnf:
    """Text of a grammar in llama.cpp's GBNF, from its rule `root`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class WithoutWords:
    """Text in which none of these stands."""

    words: tuple[str, ...]


Constraint = JsonSchema | Regex | Choice | Lark | Gbnf | WithoutWords
"""What the text of an answer must be; its reasoning stays free."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Something a model may call.

    A function takes JSON that `parameters` (a schema; None says nothing) describes, a custom tool takes text,
    which `text_format` may constrain.
    """

    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    is_strict: bool = False
    """The arguments must fit the schema, whatever the model would rather write."""
    is_custom: bool = False
    text_format: Constraint | None = None


MAX_CALLS = 16
"""Of one answer that is held to calls: a model that never tires of them stops here."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call, and whether it must."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] | None = None
    """The names that may be called; None allows all. One name and `required` is a named choice."""
    is_parallel: bool = True
    """Whether an answer may hold more than one call; a named choice is one call whatever this says."""

    @property
    def max_calls(self) -> int:
        """The largest number of calls in an answer, where something counts them."""
        is_named = self.choice == "required" and self.allowed is not None and len(self.allowed) == 1
        return 1 if is_named or not self.is_parallel else MAX_CALLS


@dataclass(frozen=True, slots=True)
class Thinking:
    """The amount of reasoning, as far as the model's template offers a say; None leaves it to the model."""

    is_enabled: bool | None = None
    effort: Effort | None = None
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's own template; `template_arguments` win over what `thinking` maps to."""

    messages: tuple[Message, ...]
    template_arguments: dict[str, JsonValue] = field(default_factory=dict)
    tool_use: ToolUse = ToolUse()
    thinking: Thinking = Thinking()
    is_continued: bool = False
    """The last message is the assistant's own and goes on instead of a new turn beginning."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text as it stands, no template; with a `suffix`, what belongs between the two."""

    text: str
    suffix: str | None = None
    adds_special: bool = True
    """Whether the signs that the vocabulary puts around a text are added."""
    parses_special: bool = True
    """Whether control tokens that are written out in the text are read as such."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as they stand."""

    tokens: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Stop:
    """The conditions that end an answer besides its length; strings match across token borders."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    is_shown: bool = False
    """Whether the string that ended the answer stands at its end."""


Ranges = tuple[tuple[int, int | None], ...]
"""Absolute positions, half-open; None is an open end."""


@dataclass(frozen=True, slots=True)
class Score:
    """Positions of the prompt whose tokens' logprobs are asked for: half-open, None is an open end.

    A position is told once, however many ranges hold it.
    """

    ranges: Ranges
    top: int = 0
    """How many alternatives to report beside each."""


@dataclass(frozen=True, slots=True)
class Steer:
    """A concept's vector, added to the residual stream after some layers; None is all of its pack's layers.

    At strength 1 it moves the stream by the distance between the concept's examples and their opposites,
    spread over those layers.
    """

    concept: str
    strength: float
    layers: tuple[int, ...] | None = None


Steering = tuple[Steer, ...]


def salt_of(tenant: str, steering: Steering = ()) -> str:
    """The salt that keeps cached KV of different owners, or of different steering, apart."""
    return tenant if not steering else f"{tenant} {sorted(map(_spelled, steering))}"


def tenant_of(salt: str) -> str:
    """The owner in a salt of `salt_of`."""
    return salt.partition(" ")[0]


def _spelled(steer: Steer) -> str:
    return f"{steer.concept!r} {steer.strength!r} {steer.layers}"


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """An image inside a token list: so many placeholders from `start` on, and which image it is."""

    start: int
    count: int
    digest: str
    data: bytes = field(default=b"", repr=False)
    """The bytes of its file, for an engine that no longer has what it made of them."""


PLACEHOLDER = -1
"""Stands in a token list wherever an image is."""


MOST_URGENT: Final = -1000
LEAST_URGENT: Final = 1000
"""The bounds of a request's `priority`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to one prompt. Lower `priority` is more urgent; `tenant` is part of every cache key."""

    id: str
    model: str
    prompt: Prompt
    sampling: Sampling = Sampling()
    stop: Stop = Stop()
    max_tokens: int | None = None
    """0 reads the prompt and generates nothing."""
    min_tokens: int = 0
    """Until so many tokens are there, nothing but a stop string ends the answer."""
    constraint: Constraint | None = None
    score: Score | None = None
    top_logprobs: int | None = None
    """How many alternatives to report beside each token's logprob; None reports no logprobs at all."""
    priority: int = 0
    tenant: str = ""
    keep_markers: bool = False
    """Leave reasoning inside the content with its markers."""
    shows_special: bool = False
    """Leave control tokens in the content that are no markers."""
    wants_token_ids: bool = False
    """Tell the prompt's token ids when it starts, and all that were generated when it ends."""
    truncate_prompt: int | None = None
    """Keep so many of the prompt's last tokens; -1 keeps what leaves room for the answer."""
    wants_readout: bool = False
    """Report the readout of each generated token."""
    steering: Steering = ()
    affinity: str = ""
    """What its client says it belongs with: requests of one affinity should meet the same prefix cache."""
    is_folded: bool = False
    """Whether the answer is given out only when it is whole: until then it may begin again from nothing."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Token ids in: what a token engine runs. `salt` keeps cached KV of different owners apart."""

    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    grammar: str | None = None
    """What may be generated, in llguidance's Lark; reasoning and calls are part of it."""
    score: Score | None = None
    sampling: ResolvedSampling = ResolvedSampling()
    stop: Stop = Stop()
    top_logprobs: int | None = None
    priority: int = 0
    salt: str = ""
    """Of `salt_of`, wherever there is a tenant or steering."""
    in_tokens: bool = False
    """Tell each token as it is sampled, the one that ends included, in a piece of its own without text."""
    readout: Ranges = ()
    """Positions whose readouts are wanted: those of the prompt come with `Scored`, the generated ones beside
    their tokens, each of which is then told one step later, when it has been read."""
    steering: Steering = ()
    images: tuple[ImageBlock, ...] = ()
    wants_token_ids: bool = False
    """Tell all tokens that were generated when it ends."""
