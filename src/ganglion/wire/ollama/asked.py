"""The shape of what Ollama's clients send, with the bounds of every field.

Null means the same as absent everywhere.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from ganglion.core.request import Effort
from ganglion.wire.fields import ModelName, Penalty, SamplerFields, StopString, TokenCount

Duration = Annotated[float, Meta(ge=-(2**53), le=2**53)] | Annotated[str, Meta(max_length=64)]
"""Seconds, or a text such as `5m` and `1h30m`."""
FunctionName = Annotated[str, Meta(min_length=1, max_length=256)]
MessageRole = Literal["system", "developer", "user", "assistant", "tool"]


class OllamaOptions(SamplerFields, frozen=True, kw_only=True):
    """How the next token is chosen and what ends an answer."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=2**31)] | None = None
    num_ctx: TokenCount | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None


class OllamaCalledFunction(Struct, frozen=True):
    """A function with the arguments it was called with: an object, which is handed on as it is written."""

    name: FunctionName
    arguments: Raw = field(default_factory=lambda: Raw(b"{}"))


class OllamaCall(Struct, frozen=True):
    """A call that the assistant made earlier."""

    function: OllamaCalledFunction
    id: str | None = None


class OllamaMessage(Struct, frozen=True):
    """One turn; images are refused, since no model here sees."""

    role: MessageRole
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: Annotated[list[OllamaCall], Meta(max_length=256)] | None = None
    tool_name: Annotated[str, Meta(max_length=256)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None


class OllamaFunction(Struct, frozen=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Struct, frozen=True):
    """Something that the model may call; Ollama knows functions only."""

    function: OllamaFunction
    type: Literal["function"] | None = None


class OllamaAnswerFields(Struct, frozen=True, kw_only=True):
    """What chat and generate share."""

    model: ModelName
    stream: bool | None = None
    think: bool | Effort | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    truncate: bool | None = None
    keep_alive: Duration | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class OllamaChatBody(OllamaAnswerFields, frozen=True, kw_only=True):
    """The body of `POST /api/chat`; without messages it loads the model, or unloads it."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=16384)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=1024)] | None = None


class OllamaGenerateBody(OllamaAnswerFields, frozen=True, kw_only=True):
    """The body of `POST /api/generate`; without a prompt it loads the model, or unloads it."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None


class OllamaEmbedBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /api/embed`."""

    model: ModelName
    input: str | Annotated[list[str], Meta(max_length=2048)]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    options: OllamaOptions | None = None
    keep_alive: Duration | None = None


class OllamaEmbeddingsBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /api/embeddings`, the older way to ask for one vector."""

    model: ModelName
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: Duration | None = None


class OllamaShowBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /api/show`; older clients say `name`."""

    model: ModelName | None = None
    name: ModelName | None = None
    verbose: bool | None = None


class OllamaPullBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /api/pull`; older clients say `name`."""

    model: ModelName | None = None
    name: ModelName | None = None
    stream: bool | None = None
    insecure: bool | None = None
