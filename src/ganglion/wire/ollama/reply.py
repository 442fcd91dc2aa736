"""The shape of what Ollama's clients get, streamed or whole."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ganglion.core.events import Alternative, Finished, Token
from ganglion.wire.logprobs import shown, told

DoneReason = Literal["stop", "length", "load", "unload"]
_encode = msgspec.json.Encoder().encode
_object: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_LAST_S: Final = 253402300799


@dataclass(frozen=True, slots=True)
class Reply:
    """What all lines of one answer share, and which route asked."""

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


class OllamaMadeFunction(Struct, frozen=True):
    """A function with the arguments that the model wrote."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaMadeCall(Struct, frozen=True):
    """A call, always whole."""

    id: str
    function: OllamaMadeFunction


class OllamaSaid(Struct, frozen=True, kw_only=True):
    """The assistant's turn, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[OllamaMadeCall, ...] | UnsetType = UNSET


class OllamaChatReply(Struct, frozen=True, kw_only=True):
    """A line of a chat's stream, or all of it; durations are nanoseconds and stand on the last line."""

    model: str
    created_at: str
    message: OllamaSaid
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


class Ending(TypedDict, total=False):
    """What only the last line says."""

    done_reason: DoneReason
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one line says of the answer itself."""

    text: str = ""
    thinking: str = ""
    calls: tuple[OllamaMadeCall, ...] = ()
    tokens: tuple[Token, ...] = ()


def line(reply: Reply, part: Part, end: Ending | None = None) -> bytes:
    """One line, in the words of the route that asked; `end` makes it the last."""
    ending: Ending = end or {}
    thinking = part.thinking or UNSET
    logprobs = logprobs_of(part.tokens) if reply.has_logprobs and part.tokens else UNSET
    if reply.route == "chat":
        said = OllamaSaid(content=part.text, thinking=thinking, tool_calls=part.calls or UNSET)
        return _encode(
            OllamaChatReply(
                model=reply.model,
                created_at=reply.created_at,
                message=said,
                logprobs=logprobs,
                done=end is not None,
                **ending,
            )
        )
    return _encode(
        OllamaGenerateReply(
            model=reply.model,
            created_at=reply.created_at,
            response=part.text,
            thinking=thinking,
            logprobs=logprobs,
            done=end is not None,
            **ending,
        )
    )


def end_of(finished: Finished) -> Ending:
    """How an answer ended and what it cost; Ollama counts waiting as loading."""
    timing, usage = finished.timing, finished.usage
    return Ending(
        done_reason="length" if finished.reason == "length" else "stop",
        total_duration=nanoseconds(timing.queued_s + timing.prefill_s + timing.decode_s),
        load_duration=nanoseconds(timing.queued_s),
        prompt_eval_count=usage.prompt_tokens,
        prompt_eval_duration=nanoseconds(timing.prefill_s),
        eval_count=usage.completion_tokens,
        eval_duration=nanoseconds(timing.decode_s),
    )


def call_of(index: int, call_id: str | None, name: str | None, arguments: str) -> OllamaMadeCall | None:
    """A call with its arguments as an object; None when what the model wrote is none."""
    try:
        read = _object.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return OllamaMadeCall(call_id or "", OllamaMadeFunction(index, name or "", read))


def logprobs_of(tokens: Iterable[Token]) -> list[OllamaLogprob]:
    """The tokens' probabilities as this wire tells them."""
    return [
        OllamaLogprob(
            shown(token.piece),
            told(token.logprob),
            list(token.piece),
            [_alternative(each) for each in token.top] or UNSET,
        )
        for token in tokens
        if token.logprob is not None
    ]


def moment(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 writes them, within its years."""
    within = min(max(seconds, 0), _LAST_S)
    return datetime.fromtimestamp(within, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama counts it."""
    return round(seconds * 1e9)


def _alternative(alternative: Alternative) -> OllamaAlternative:
    logprob = told(alternative.logprob)
    return OllamaAlternative(shown(alternative.piece), logprob, list(alternative.piece))
