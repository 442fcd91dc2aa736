"""Parses a chat body into its requests: one for each of n choices, with the same prompt."""

from dataclasses import replace
from typing import TypeVar, assert_never

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import (
    ChatPrompt,
    JsonValue,
    Message,
    Request,
    Thinking,
    ToolCall,
    ToolUse,
)
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.attached_files import MessageContent, check_attachment_count
from ganglion.wire.chat.chat_tools import LegacyFunctionChoice, legacy_call_id, legacy_tool_use, tool_use_of
from ganglion.wire.chat.schema import (
    ChatAssistantMessage,
    ChatAudioPart,
    ChatBody,
    ChatDeveloperMessage,
    ChatFilePart,
    ChatFunctionMessage,
    ChatImagePart,
    ChatInputImagePart,
    ChatMessageParam,
    ChatRefusalPart,
    ChatReplyContext,
    ChatSystemMessage,
    ChatTextPart,
    ChatToolMessage,
    ChatUserMessage,
    ChatUserPart,
    PastCustomCall,
    PastFunctionCall,
)
from ganglion.wire.constraint import CONSTRAINTS
from ganglion.wire.decode import decode
from ganglion.wire.field_policy import IGNORED, INSTEAD, MAX_FREE_FORM_BYTES, UNSUPPORTED_IN_CHAT, FieldPolicy
from ganglion.wire.fields import (
    check_token_counts,
    choice_samplings,
    usage_reporting,
)
from ganglion.wire.generation_fields import request_of
from ganglion.wire.logprobs import check_alternatives, check_prompt_logprobs, prompt_score

_T = TypeVar("_T")

_body = msgspec.json.Decoder(ChatBody)
# An agent that talks to many servers brings hundreds of tools.
_MAX_TOOLS_BYTES = 2**20
_POLICY = FieldPolicy(
    ChatBody,
    unsupported=UNSUPPORTED_IN_CHAT,
    # A prediction is a hint that makes an answer come sooner and never changes it: no more is promised.
    ignored=(*IGNORED, "prediction"),
    max_bytes={
        **CONSTRAINTS,
        "chat_template_kwargs": MAX_FREE_FORM_BYTES,
        "tools": _MAX_TOOLS_BYTES,
        "functions": _MAX_TOOLS_BYTES,
    },
    instead=INSTEAD,
    # What an answer held goes back with it, and caches are asked for nothing.
    ignored_inside=frozenset({"annotations", "index", "cache_control", "prompt_cache_breakpoint"}),
)


def parse(body: bytes, context: ParseContext) -> ParsedCall[ChatReplyContext]:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    unknown = _POLICY.check(body, is_strict=context.is_strict)
    fields = decode(_body, body)
    is_streamed = bool(fields.stream)
    if fields.prompt_logprobs is not None:
        check_prompt_logprobs(fields.prompt_logprobs, is_streamed=is_streamed)
    prompt, top_logprobs = _prompt(fields), _top_logprobs(fields)
    request = request_of(
        fields,
        context,
        prompt,
        max_tokens=_max_tokens(fields),
        top_logprobs=top_logprobs,
        keep_markers=context.keep_markers,
    )
    check_token_counts(request.min_tokens, request.max_tokens, request.truncate_prompt)
    reply = ChatReplyContext(
        id=context.id,
        created_s=int(context.created_s),
        model=fields.model,
        fingerprint=context.fingerprint,
        usage_reporting=usage_reporting(fields.stream_options, is_streamed=is_streamed),
        shows_thought=context.shows_thought,
        has_logprobs=top_logprobs is not None,
        prompt_logprobs=fields.prompt_logprobs,
        has_readout=request.wants_readout,
        custom_tools=frozenset(tool.name for tool in prompt.tool_use.tools if tool.is_custom),
        is_legacy=bool(fields.functions),
        has_token_ids=request.wants_token_ids,
    )
    requests = _scored(_choices(request, fields.n or 1), fields.prompt_logprobs)
    ignored = ("'store' of a chat, which is kept nowhere (/v1/responses keeps)",) if fields.store else ()
    return ParsedCall(requests, reply, is_streamed, unknown, ignored)


def _scored(requests: tuple[Request, ...], prompt_logprobs: int | None) -> tuple[Request, ...]:
    """The prompt is the same for all choices, so the first one's is scored."""
    if prompt_logprobs is None:
        return requests
    first, *others = requests
    return (replace(first, score=prompt_score(prompt_logprobs)), *others)


def _choices(request: Request, count: int) -> tuple[Request, ...]:
    if count == 1:
        return (request,)
    samplings = choice_samplings(request.sampling, count)
    return tuple(
        replace(request, id=f"{request.id}-{choice}", sampling=sampling)
        for choice, sampling in enumerate(samplings)
    )


def _top_logprobs(fields: ChatBody) -> int | None:
    if fields.top_logprobs is not None:
        check_alternatives(fields.top_logprobs, "top_logprobs")
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidValue("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _max_tokens(fields: ChatBody) -> int | None:
    if fields.max_completion_tokens is None:
        return fields.max_tokens
    if fields.max_tokens not in (None, fields.max_completion_tokens):
        raise InvalidValue(
            f"'max_tokens' is {fields.max_tokens} and 'max_completion_tokens' is "
            f"{fields.max_completion_tokens}; they mean the same, so give one.",
            param="max_tokens",
        )
    return fields.max_completion_tokens


def _prompt(fields: ChatBody) -> ChatPrompt:
    arguments: dict[str, JsonValue] = dict(fields.chat_template_kwargs or {})
    if fields.verbosity is not None:
        arguments.setdefault("verbosity", fields.verbosity)
    return ChatPrompt(
        _messages(fields), arguments, _tool_use(fields), _thinking(fields), _is_continued(fields)
    )


def _tool_use(fields: ChatBody) -> ToolUse:
    if fields.functions:
        return legacy_tool_use(fields.functions, fields.function_call, fields.tools, fields.tool_choice)
    if isinstance(fields.function_call, LegacyFunctionChoice):
        raise InvalidValue("'function_call' needs functions and there are none.", param="function_call")
    return tool_use_of(fields.tools, fields.tool_choice, fields.parallel_tool_calls)


def _thinking(fields: ChatBody) -> Thinking:
    reasoning = fields.reasoning
    if reasoning is None:
        return Thinking(fields.enable_thinking, fields.reasoning_effort)
    for name, is_asked in (("exclude", reasoning.exclude), ("summary", reasoning.summary)):
        if is_asked:
            param = f"reasoning.{name}"
            raise UnsupportedParameter(
                f"The parameter '{param}' is not supported: reasoning is sent in full.", param=param
            )
    return Thinking(
        _agreed("enable_thinking", fields.enable_thinking, "reasoning.enabled", reasoning.enabled),
        _agreed("reasoning_effort", fields.reasoning_effort, "reasoning.effort", reasoning.effort),
        reasoning.max_tokens,
    )


def _agreed(name: str, value: _T | None, other_name: str, other: _T | None) -> _T | None:
    if value is not None and other is not None and value != other:
        raise InvalidValue(
            f"'{name}' is {value} and '{other_name}' is {other}; they mean the same, so give one.", param=name
        )
    return other if value is None else value


def _is_continued(fields: ChatBody) -> bool:
    if not fields.continue_final_message:
        if fields.add_generation_prompt is False:
            raise UnsupportedParameter(
                "Without a generation prompt there is nothing to answer.",
                param="add_generation_prompt",
                hint="Set 'continue_final_message' to go on with an assistant's message.",
            )
        return False
    if fields.add_generation_prompt:
        raise InvalidValue(
            "'add_generation_prompt' begins a new message and 'continue_final_message' does not; give one.",
            param="add_generation_prompt",
        )
    if not isinstance(fields.messages[-1], ChatAssistantMessage):
        raise InvalidValue(
            "The last message is not the assistant's, so it cannot be continued.",
            param="continue_final_message",
        )
    return True


def _messages(fields: ChatBody) -> tuple[Message, ...]:
    messages: list[Message] = []
    called: str | None = None
    """The call that the last function was called with, which its answer belongs to."""
    for place, message in enumerate(fields.messages):
        read = _message(message, f"messages[{place}]")
        if isinstance(message, ChatAssistantMessage) and message.function_call is not None:
            called = legacy_call_id(place)
            call = ToolCall(called, message.function_call.name, message.function_call.arguments)
            read = replace(read, tool_calls=(*read.tool_calls, call))
        elif isinstance(message, ChatFunctionMessage):
            read = replace(read, tool_call_id=called)
        messages.append(read)
    check_attachment_count(messages)
    return tuple(messages)


def _message(message: ChatMessageParam, path: str) -> Message:
    match message:
        case ChatSystemMessage(content=content, name=name):
            return Message("system", _text(content), name=name)
        case ChatDeveloperMessage(content=content, name=name):
            return Message("developer", _text(content), name=name)
        case ChatUserMessage(content=parts, name=name):
            return _shown(Message("user", "", name=name), parts, path)
        case ChatAssistantMessage():
            return _assistant(message, path)
        case ChatToolMessage(content=content, name=name, tool_call_id=call_id):
            return _shown(Message("tool", "", name=name, tool_call_id=call_id), content, path)
        case ChatFunctionMessage(content=content, name=name):
            return Message("tool", content or "", name=name)
        case _:
            assert_never(message)


def _assistant(message: ChatAssistantMessage, path: str) -> Message:
    if message.audio is not None:
        param = f"{path}.audio"
        raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)
    content = message.refusal if message.content is None else message.content
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    return Message(
        "assistant",
        _text(content or ""),
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


def _text(content: str | list[ChatTextPart] | list[ChatTextPart | ChatRefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, ChatTextPart) else part.refusal for part in content)


def _shown(message: Message, parts: str | list[ChatUserPart], path: str) -> Message:
    """The message with this content."""
    if isinstance(parts, str):
        return replace(message, content=parts)
    content = MessageContent()
    for place, part in enumerate(parts):
        where = f"{path}.content[{place}]"
        match part:
            case ChatTextPart(text=text):
                content.say(text)
            case ChatImagePart(image_url=image):
                content.show(image.url, where, ".image_url.url", image.detail)
            case ChatInputImagePart(image_url=url, detail=detail):
                content.show(url, where, ".image_url", detail)
            case ChatAudioPart(input_audio=audio):
                content.play(audio.data, where, ".input_audio.data", audio.format)
            case ChatFilePart():
                raise UnsupportedParameter(
                    f"'{where}' is a file, and only text, images and sounds are read.", param=where
                )
            case _:
                assert_never(part)
    return replace(message, content=content.text, attachments=tuple(content.attachments))
