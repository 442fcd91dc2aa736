"""A chat body to the requests it means: n of them, one per choice, sharing their prompt."""

from dataclasses import dataclass, replace
from typing import assert_never

import msgspec

from ganglion.core.errors import InvalidValue, UnknownParameter, UnsupportedParameter, VisionUnsupported
from ganglion.core.request import ChatPrompt, JsonValue, Message, Request, Thinking
from ganglion.wire.chat.asked import (
    AnyMessage,
    AssistantMessage,
    AudioPart,
    ChatBody,
    DeveloperMessage,
    FilePart,
    ImagePart,
    InputImagePart,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
    UserPart,
)
from ganglion.wire.chat.reply import Reply
from ganglion.wire.decode import decode
from ganglion.wire.fields import SEEDS, sampling_of, stop_of
from ganglion.wire.unhonoured import HARMLESS, UNHONOURED, refuse_unhonoured

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_body = msgspec.json.Decoder(ChatBody)
_MAX_FIELDS = 512
_MAX_FREE_FORM_BYTES = 2**18
_FREE_FORM = frozenset({"chat_template_kwargs"}) | UNHONOURED.keys()
_KNOWN = frozenset(ChatBody.__struct_fields__) | HARMLESS | UNHONOURED.keys()


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the door knows of a request besides its body."""

    id: str
    created_s: int
    fingerprint: str | None = None
    tenant: str = ""
    keep_markers: bool = False
    is_thought_shown: bool = False
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ChatCall:
    """What one body asks for: its requests, how to answer them, and the fields nobody knows."""

    requests: tuple[Request, ...]
    reply: Reply
    is_streamed: bool
    unknown_fields: tuple[str, ...] = ()


def parse(body: bytes, arrival: Arrival) -> ChatCall:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    fields = decode(_fields, body)
    _check_size(fields)
    refuse_unhonoured(fields)
    asked = decode(_body, body)
    unknown = tuple(name for name in fields if name not in _KNOWN)
    if unknown and arrival.is_strict:
        raise UnknownParameter(f"The parameter '{unknown[0]}' is not known.", param=unknown[0])
    _check_stream_options(asked)
    top_logprobs = _top_logprobs(asked)
    request = Request(
        id=arrival.id,
        model=asked.model,
        prompt=_prompt(asked),
        sampling=sampling_of(asked),
        stop=stop_of(asked),
        max_tokens=_max_tokens(asked),
        top_logprobs=top_logprobs,
        priority=asked.priority or 0,
        tenant=arrival.tenant,
        keep_markers=arrival.keep_markers,
    )
    options = asked.stream_options
    reply = Reply(
        id=arrival.id,
        created_s=arrival.created_s,
        model=asked.model,
        fingerprint=arrival.fingerprint,
        is_usage_included=bool(options and options.include_usage),
        is_thought_shown=arrival.is_thought_shown,
        has_logprobs=top_logprobs is not None,
    )
    return ChatCall(_choices(request, asked.n or 1), reply, bool(asked.stream), unknown)


def _check_size(fields: dict[str, msgspec.Raw]) -> None:
    # Free-form JSON costs a hundred times its size to read, on the event loop: bound it before reading.
    if len(fields) > _MAX_FIELDS:
        raise InvalidValue(f"The body holds {len(fields)} parameters; {_MAX_FIELDS} is the most.")
    for name in fields.keys() & _FREE_FORM:
        if len(bytes(fields[name])) > _MAX_FREE_FORM_BYTES:
            raise InvalidValue(f"'{name}' is larger than {_MAX_FREE_FORM_BYTES} bytes.", param=name)


def _choices(request: Request, count: int) -> tuple[Request, ...]:
    if count == 1:
        return (request,)
    seed = request.sampling.seed
    return tuple(
        replace(
            request,
            id=f"{request.id}-{choice}",
            sampling=replace(request.sampling, seed=None if seed is None else (seed + choice) % SEEDS),
        )
        for choice in range(count)
    )


def _check_stream_options(asked: ChatBody) -> None:
    if asked.stream_options is None:
        return
    if not asked.stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if asked.stream_options.continuous_usage_stats:
        name = "stream_options.continuous_usage_stats"
        raise UnsupportedParameter(f"The parameter '{name}' is not supported.", param=name)


def _top_logprobs(asked: ChatBody) -> int | None:
    if asked.top_logprobs and not asked.logprobs:
        raise InvalidValue("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _max_tokens(asked: ChatBody) -> int | None:
    if asked.max_completion_tokens is None:
        return asked.max_tokens
    if asked.max_tokens not in (None, asked.max_completion_tokens):
        raise InvalidValue(
            f"'max_tokens' is {asked.max_tokens} and 'max_completion_tokens' is "
            f"{asked.max_completion_tokens}; they mean the same, so give one.",
            param="max_tokens",
        )
    return asked.max_completion_tokens


def _prompt(asked: ChatBody) -> ChatPrompt:
    arguments: dict[str, JsonValue] = asked.chat_template_kwargs or {}
    return ChatPrompt(_messages(asked), arguments, thinking=Thinking(effort=asked.reasoning_effort))


def _messages(asked: ChatBody) -> tuple[Message, ...]:
    return tuple(
        _message(message, f"messages[{place}]", asked.model) for place, message in enumerate(asked.messages)
    )


def _message(message: AnyMessage, path: str, model: str) -> Message:
    match message:
        case SystemMessage(content=content, name=name):
            return Message("system", _text(content, path, model), name=name)
        case DeveloperMessage(content=content, name=name):
            return Message("developer", _text(content, path, model), name=name)
        case UserMessage(content=parts, name=name):
            return Message("user", _text(parts, path, model), name=name)
        case AssistantMessage():
            return _assistant(message, path, model)
        case ToolMessage(content=content, name=name, tool_call_id=call_id):
            return Message("tool", _text(content, path, model), name=name, tool_call_id=call_id)
        case _:
            assert_never(message)


def _assistant(message: AssistantMessage, path: str, model: str) -> Message:
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(message, name):
            param = f"{path}.{name}"
            raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)
    content = message.refusal if message.content is None else message.content
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    return Message("assistant", _text(content or "", path, model), reasoning=reasoning, name=message.name)


def _text(
    content: str | list[TextPart] | list[UserPart] | list[TextPart | RefusalPart], path: str, model: str
) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{path}.content[{place}]", model) for place, part in enumerate(content))


def _part(part: UserPart | RefusalPart, path: str, model: str) -> str:
    match part:
        case TextPart(text=text):
            return text
        case RefusalPart(refusal=text):
            return text
        case ImagePart() | InputImagePart():
            raise VisionUnsupported(
                f"The model {model!r} reads text only, and '{path}' is an image.",
                param=path,
                extras={"model": model, "suggestion": "send text only"},
            )
        case AudioPart() | FilePart():
            raise UnsupportedParameter(f"'{path}' is neither text nor an image.", param=path)
        case _:
            assert_never(part)
