"""The schema of Ollama's bodies and replies, with the bounds of every field.

Null means the same as absent everywhere.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from ganglion.core.events import Finished, Token
from ganglion.core.request import Effort
from ganglion.wire.fields import ModelName, SamplerFields, TokenCount
from ganglion.wire.logprobs import told_logprobs

DoneReason = Literal["stop", "length", "load", "unload"]
_encode = msgspec.json.Encoder().encode
_object: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_LAST_S: Final = 253402300799


@dataclass(frozen=True, slots=True)
class OllamaReplyContext:
    """The fields that all lines of one answer share, and the route of the call."""

    route: Literal["chat", "generate"]
    model: str
    created_at: str
    has_logprobs: bool = False


class OllamaAlternative(Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(Struct, frozen=True):
    """One token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[OllamaAlternative] | UnsetType = UNSET


class OllamaReplyFunction(Struct, frozen=True):
    """A function with the arguments that the model wrote."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaReplyToolCall(Struct, frozen=True):
    """A call, always whole."""

    id: str
    function: OllamaReplyFunction


class OllamaReplyMessage(Struct, frozen=True, kw_only=True):
    """The assistant's turn, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[OllamaReplyToolCall, ...] | UnsetType = UNSET


class OllamaChatReply(Struct, frozen=True, kw_only=True):
    """A line of a chat's stream, or all of it; durations are nanoseconds and stand on the last line."""

    model: str
    created_at: str
    message: OllamaReplyMessage
    logprobs: list[OllamaLogprob] | UnsetType = UNSET
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaGenerateReply(Struct, frozen=True, kw_only=True):
    """A line of a generated text's stream, or all of it; as a chat's, without a message."""

    model: str
    created_at: str
    response: str
    thinking: str | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


OllamaEnding = dict[str, Any]
"""The fields of the last line alone, `done_reason` and what follows it."""


@dataclass(frozen=True, slots=True)
class OllamaPart:
    """The part of the answer in one line."""

    text: str = ""
    thinking: str = ""
    calls: tuple[OllamaReplyToolCall, ...] = ()
    tokens: tuple[Token, ...] = ()


def encode_line(reply: OllamaReplyContext, part: OllamaPart, end: OllamaEnding | None = None) -> bytes:
    """One line, in the words of the route that asked; `end` makes it the last."""
    thinking = part.thinking or UNSET
    fields: dict[str, Any] = {
        "model": reply.model,
        "created_at": reply.created_at,
        "logprobs": told_logprobs(part.tokens, _logprob, OllamaAlternative)
        if reply.has_logprobs and part.tokens
        else UNSET,
        "done": end is not None,
        **(end or {}),
    }
    if reply.route == "chat":
        said = OllamaReplyMessage(content=part.text, thinking=thinking, tool_calls=part.calls or UNSET)
        return _encode(OllamaChatReply(message=said, **fields))
    return _encode(OllamaGenerateReply(response=part.text, thinking=thinking, **fields))


def end_of(finished: Finished) -> OllamaEnding:
    """The finish reason and the costs of an answer; Ollama counts waiting as loading."""
    timing, usage = finished.timing, finished.usage
    return OllamaEnding(
        done_reason="length" if finished.reason == "length" else "stop",
        total_duration=nanoseconds(timing.queued_s + timing.prefill_s + timing.decode_s),
        load_duration=nanoseconds(timing.queued_s),
        prompt_eval_count=usage.prompt_tokens,
        prompt_eval_duration=nanoseconds(timing.prefill_s),
        eval_count=usage.completion_tokens,
        eval_duration=nanoseconds(timing.decode_s),
    )


def call_of(index: int, call_id: str | None, name: str | None, arguments: str) -> OllamaReplyToolCall | None:
    """A call with its arguments as an object; None when what the model wrote is none."""
    try:
        read = _object.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return OllamaReplyToolCall(call_id or "", OllamaReplyFunction(index, name or "", read))


def moment(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 writes them, within its years."""
    within = min(max(seconds, 0), _LAST_S)
    return datetime.fromtimestamp(within, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama counts it."""
    return round(seconds * 1e9)


def _logprob(
    token: str, logprob: float, token_bytes: list[int], top: list[OllamaAlternative]
) -> OllamaLogprob:
    return OllamaLogprob(token, logprob, token_bytes, top or UNSET)


_Duration = Annotated[float, Meta(ge=-(2**53), le=2**53)] | Annotated[str, Meta(max_length=64)]
"""Seconds, or a text such as `5m` and `1h30m`."""
_FunctionName = Annotated[str, Meta(min_length=1, max_length=256)]
_MessageRole = Literal["system", "developer", "user", "assistant", "tool"]


class OllamaOptions(SamplerFields, frozen=True, kw_only=True):
    """Options of sampling, and of what ends an answer."""

    num_predict: Annotated[int, Meta(ge=-2, le=2**31)] | None = None
    num_ctx: TokenCount | None = None


class OllamaToolCallFunction(Struct, frozen=True):
    """A function with the arguments it was called with: an object, which is handed on as it is written."""

    name: _FunctionName
    arguments: Raw = field(default_factory=lambda: Raw(b"{}"))


class OllamaToolCall(Struct, frozen=True):
    """A call that the assistant made earlier."""

    function: OllamaToolCallFunction
    id: str | None = None


class OllamaMessage(Struct, frozen=True):
    """One turn; images are base64, for a model that sees."""

    role: _MessageRole
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: Annotated[list[OllamaToolCall], Meta(max_length=256)] | None = None
    tool_name: Annotated[str, Meta(max_length=256)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None


class OllamaFunction(Struct, frozen=True):
    """A function that the model may call."""

    name: _FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Struct, frozen=True):
    """Something that the model may call; Ollama knows functions only."""

    function: OllamaFunction
    type: Literal["function"] | None = None


class OllamaAnswerFields(Struct, frozen=True, kw_only=True):
    """The fields that chat and generate share."""

    model: ModelName
    stream: bool | None = None
    think: bool | Effort | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    truncate: bool | None = None
    keep_alive: _Duration | None = None
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
    keep_alive: _Duration | None = None


class OllamaEmbeddingsBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /api/embeddings`, the older way to ask for one vector."""

    model: ModelName
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: _Duration | None = None


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
