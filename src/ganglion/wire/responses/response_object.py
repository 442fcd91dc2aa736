"""The schema of responses: their items and the response object itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ganglion.core.errors import ContextLengthExceeded, GanglionError, InvalidRequest, RateLimited
from ganglion.core.events import Token, Usage
from ganglion.core.sampling import ResolvedSampling
from ganglion.wire.logprobs import told_logprobs
from ganglion.wire.responses.items import ReasoningText, Status, SummaryText
from ganglion.wire.responses.responses_tools import WireToolName
from ganglion.wire.responses.schema import (
    ConversationReference,
    ResponsesJsonObjectFormat,
    ResponsesTextFormat,
    Verbosity,
)

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseTopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ResponseLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ResponseTopLogprob]


class ResponseTextPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    annotations: tuple[()] = ()
    logprobs: tuple[ResponseLogprob, ...] = ()
    text: str


class ResponseMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: tuple[ResponseTextPart, ...]


class ResponseFunctionCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class ResponseCustomToolCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    id: str
    status: Status
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


class ResponseReasoning(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The reasoning itself; there are no summaries, and a sealed copy only when asked for."""

    id: str
    status: Status
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...]
    encrypted_content: str | UnsetType = UNSET


class InputTokenDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokenDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class ResponseError(Struct, frozen=True):
    """Why a response failed: `code` is one that OpenAI's clients know, `reason` is our own, finer one."""

    code: str
    message: str
    reason: str


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class FormatEcho(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """A schema that the answer is held to, with what was left out of it filled in."""

    name: str
    description: str | None
    schema: dict[str, Any]
    strict: bool


class TextEcho(Struct, frozen=True):
    format: ResponsesTextFormat | ResponsesJsonObjectFormat | FormatEcho
    verbosity: Verbosity


class ReasoningEcho(Struct, frozen=True):
    effort: str | None
    summary: str | None


class ResponseObject(Struct, frozen=True, kw_only=True):
    """A response as it is sent and stored; every field is always there.

    What a request left out is told as the values that were used.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    background: bool
    completed_at: int | None = None
    conversation: ConversationReference | None
    error: ResponseError | None = None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: tuple[Raw, ...] = ()
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: str | dict[str, Any]
    tools: tuple[Raw, ...]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


@dataclass(frozen=True, slots=True)
class ResponsesReplyContext:
    """The context of one response: the response as it begins, and the options of its client."""

    response: ResponseObject
    called: Mapping[str, WireToolName] = field(default_factory=dict)
    """By the names that the model uses."""
    has_logprobs: bool = False
    is_reasoning_sealed: bool = False


def with_sampling(response: ResponseObject, used: ResolvedSampling) -> ResponseObject:
    """The response with the values that its tokens are chosen by."""
    return replace(
        response,
        temperature=used.temperature,
        top_p=used.top_p,
        presence_penalty=used.presence_penalty,
        frequency_penalty=used.frequency_penalty,
    )


def usage_of(usage: Usage) -> ResponseUsage:
    """Token counts in this wire's words; nothing is charged for writing a cache, so none are written."""
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokenDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputTokenDetails(usage.reasoning_tokens),
        usage.prompt_tokens + usage.completion_tokens,
    )


def error_of(error: GanglionError) -> ResponseError:
    """An error as a failed response holds it."""
    return ResponseError(_code(error), error.full_message, error.code)


def _code(error: GanglionError) -> str:
    # OpenAI's SDKs know a closed list of codes; Codex knows one more, and acts on it.
    match error:
        case ContextLengthExceeded():
            return error.code
        case RateLimited():
            return "rate_limit_exceeded"
        case InvalidRequest():
            return "invalid_prompt"
        case _:
            return "server_error"


def logprobs_of(tokens: Iterable[Token]) -> tuple[ResponseLogprob, ...]:
    """The tokens' probabilities as this wire tells them."""
    return tuple(told_logprobs(tokens, ResponseLogprob, ResponseTopLogprob))
