"""A chat body to the requests it means: n of them, one per choice, sharing their prompt."""

from dataclasses import dataclass, replace
from typing import assert_never

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter, VisionUnsupported
from ganglion.core.request import ChatPrompt, JsonValue, Message, Request, Score, Thinking, ToolCall
from ganglion.wire.chat.asked import (
    AnyMessage,
    AssistantMessage,
    AudioPart,
    ChatBody,
    DeveloperMessage,
    FilePart,
    ImagePart,
    InputImagePart,
    PastCustomCall,
    PastFunctionCall,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
    UserPart,
)
from ganglion.wire.chat.reply import Reply
from ganglion.wire.chat.tools import tool_use_of
from ganglion.wire.constraint import CONSTRAINTS, constraint_of
from ganglion.wire.decode import decode
from ganglion.wire.fields import SEEDS, check_token_counts, is_usage_included, sampling_of, stop_of
from ganglion.wire.known import MAX_FREE_FORM_BYTES, Known
from ganglion.wire.logprobs import check_prompt_logprobs
from ganglion.wire.steering import steering_of
from ganglion.wire.unhonoured import UNHONOURED_IN_CHAT

_body = msgspec.json.Decoder(ChatBody)
# An agent that talks to many servers brings hundreds of tools.
_MAX_TOOLS_BYTES = 2**20
_KNOWN = Known(
    frozenset(ChatBody.__struct_fields__),
    UNHONOURED_IN_CHAT,
    {**CONSTRAINTS, "chat_template_kwargs": MAX_FREE_FORM_BYTES, "tools": _MAX_TOOLS_BYTES},
)


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
    unknown = _KNOWN.check(body, is_strict=arrival.is_strict)
    asked = decode(_body, body)
    check_prompt_logprobs(asked.prompt_logprobs, is_streamed=bool(asked.stream))
    prompt, top_logprobs = _prompt(asked), _top_logprobs(asked)
    request = Request(
        id=arrival.id,
        model=asked.model,
        prompt=prompt,
        sampling=sampling_of(asked),
        stop=stop_of(asked),
        max_tokens=_max_tokens(asked),
        min_tokens=asked.min_tokens or 0,
        constraint=constraint_of(asked),
        top_logprobs=top_logprobs,
        priority=asked.priority or 0,
        tenant=arrival.tenant,
        keep_markers=arrival.keep_markers,
        wants_readout=bool(asked.readout),
        steering=steering_of(asked.steering),
        affinity=asked.prompt_cache_key or "",
    )
    check_token_counts(request.min_tokens, request.max_tokens)
    reply = Reply(
        id=arrival.id,
        created_s=arrival.created_s,
        model=asked.model,
        fingerprint=arrival.fingerprint,
        is_usage_included=is_usage_included(asked.stream_options, is_streamed=bool(asked.stream)),
        is_thought_shown=arrival.is_thought_shown,
        has_logprobs=top_logprobs is not None,
        prompt_logprobs=asked.prompt_logprobs,
        has_readout=request.wants_readout,
        custom_tools=frozenset(tool.name for tool in prompt.tool_use.tools if tool.is_custom),
    )
    requests = _scored(_choices(request, asked.n or 1), asked.prompt_logprobs)
    return ChatCall(requests, reply, bool(asked.stream), unknown)


def _scored(requests: tuple[Request, ...], prompt_logprobs: int | None) -> tuple[Request, ...]:
    """The prompt is the same for all choices, so the first one's is scored."""
    if prompt_logprobs is None:
        return requests
    first, *others = requests
    return (replace(first, score=Score(((0, None),), prompt_logprobs)), *others)


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
    return ChatPrompt(
        _messages(asked),
        arguments,
        tool_use_of(asked.tools, asked.tool_choice, asked.parallel_tool_calls),
        Thinking(asked.enable_thinking, asked.reasoning_effort),
        _is_continued(asked),
    )


def _is_continued(asked: ChatBody) -> bool:
    if not asked.continue_final_message:
        if asked.add_generation_prompt is False:
            raise UnsupportedParameter(
                "Without a generation prompt there is nothing to answer.",
                param="add_generation_prompt",
                hint="Set 'continue_final_message' to go on with an assistant's message.",
            )
        return False
    if asked.add_generation_prompt:
        raise InvalidValue(
            "'add_generation_prompt' begins a new message and 'continue_final_message' does not; give one.",
            param="add_generation_prompt",
        )
    if not isinstance(asked.messages[-1], AssistantMessage):
        raise InvalidValue(
            "The last message is not the assistant's, so it cannot be continued.",
            param="continue_final_message",
        )
    return True


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
    for name in ("function_call", "audio"):
        if getattr(message, name) is not None:
            param = f"{path}.{name}"
            raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)
    content = message.refusal if message.content is None else message.content
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    return Message(
        "assistant",
        _text(content or "", path, model),
        reasoning=reasoning,
        name=message.name,
        tool_calls=tuple(map(_call, message.tool_calls or ())),
    )


def _call(call: PastFunctionCall | PastCustomCall) -> ToolCall:
    match call:
        case PastFunctionCall(id=call_id, function=function):
            return ToolCall(call_id, function.name, function.arguments)
        case PastCustomCall(id=call_id, custom=custom):
            return ToolCall(call_id, custom.name, custom.input)
        case _:
            assert_never(call)


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
