"""Parses the bodies of `/api/chat` and `/api/generate` into requests."""

from functools import lru_cache
from typing import Final, Literal

import msgspec

from ganglion.core.errors import InvalidValue
from ganglion.core.request import (
    ChatPrompt,
    Constraint,
    JsonSchema,
    Message,
    Prompt,
    Request,
    TextPrompt,
    Thinking,
    Tool,
    ToolCall,
    ToolUse,
)
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.attached_files import MessageContent, check_attachment_count
from ganglion.wire.decode import decode
from ganglion.wire.field_policy import FieldPolicy
from ganglion.wire.ollama.options import (
    HINTS,
    IGNORED_OPTIONS,
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_OPTIONS,
    is_unloading,
    max_tokens_of,
    sampling_of,
    stop_of,
)
from ganglion.wire.ollama.schema import (
    OllamaAnswerFields,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
    OllamaReplyContext,
    OllamaTool,
    OllamaToolCallFunction,
    moment,
)
from ganglion.wire.unknown_fields import fields_of

_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_chat = msgspec.json.Decoder(OllamaChatBody)
_generate = msgspec.json.Decoder(OllamaGenerateBody)
_IMAGE_MARK: Final = "[img]"
_MAX_BYTES = {"format": 2**18, "options": 2**18, "tools": 2**20}
_OPTIONS = FieldPolicy(
    OllamaOptions, unsupported=UNSUPPORTED_OPTIONS, ignored=IGNORED_OPTIONS, prefix="options."
)


def parse_chat(body: bytes, context: ParseContext) -> ParsedCall[OllamaReplyContext]:
    """Read a body of `/api/chat`, or raise the InvalidRequest that names the first thing wrong with it."""
    unknown = check_fields(body, OllamaChatBody, is_strict=context.is_strict)
    fields = decode(_chat, body)
    prompt: Prompt | None = None
    if fields.messages:
        tools = ToolUse(tuple(_tool(tool) for tool in fields.tools or ()))
        messages = _messages(fields.messages)
        prompt = ChatPrompt(messages, tool_use=tools, thinking=_thinking(fields.think))
    return _call(fields, prompt, "chat", context, unknown)


def parse_generate(body: bytes, context: ParseContext) -> ParsedCall[OllamaReplyContext]:
    """Read a body of `/api/generate`, or raise the InvalidRequest that names what is wrong with it."""
    unknown = check_fields(body, OllamaGenerateBody, is_strict=context.is_strict)
    fields = decode(_generate, body)
    prompt = _prompt(fields) if fields.prompt or fields.suffix or fields.images else None
    return _call(fields, prompt, "generate", context, unknown)


@lru_cache(maxsize=16)
def _policy(body: type[msgspec.Struct]) -> FieldPolicy:
    return FieldPolicy(
        body,
        unsupported=UNSUPPORTED_FIELDS,
        max_bytes=_MAX_BYTES,
        hints=HINTS,
        shapes=lambda: {name: shape for name, shape in fields_of(body).items() if name != "options"},
    )


def check_fields(body: bytes, kind: type[msgspec.Struct], *, is_strict: bool) -> tuple[str, ...]:
    """The unknown fields and options; raises for what is too large or unsupported."""
    policy = _policy(kind)
    fields = policy.read(body)
    return policy.check_fields(fields, _OPTIONS.unknown(_options_of(fields)), is_strict=is_strict)


def _options_of(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    if "options" not in fields or not bytes(fields["options"]).startswith(b"{"):
        return {}  # what is no object is refused by name when the whole body is read
    return decode(_options, bytes(fields["options"])) or {}


def _call(
    fields: OllamaAnswerFields,
    prompt: Prompt | None,
    route: Literal["chat", "generate"],
    context: ParseContext,
    unknown: tuple[str, ...],
) -> ParsedCall[OllamaReplyContext]:
    options = fields.options or OllamaOptions()
    is_leaving = is_unloading(fields.keep_alive)
    top_logprobs = _top_logprobs(fields)
    request = Request(
        id=context.id,
        model=fields.model,
        # A model that is only to be loaded reads one blank and says nothing.
        prompt=prompt or TextPrompt(" "),
        sampling=sampling_of(options),
        stop=stop_of(options),
        max_tokens=max_tokens_of(options) if prompt else 0,
        constraint=_constraint(fields.format),
        top_logprobs=top_logprobs,
        tenant=context.tenant,
        truncate_prompt=-1 if fields.truncate and _is_bare(prompt) else None,
    )
    reply = OllamaReplyContext(
        route, fields.model, moment(context.created_s), has_logprobs=top_logprobs is not None
    )
    return ParsedCall(
        (request,),
        reply,
        is_streamed=fields.stream is not False,
        purpose="answer" if prompt else "unload" if is_leaving else "load",
        context_tokens=options.num_ctx,
        may_truncate=bool(fields.truncate),
        unknown_fields=unknown,
    )


def _is_bare(prompt: Prompt | None) -> bool:
    """Whether a prompt can lose its beginning: one with a template or a suffix has signs there."""
    return isinstance(prompt, TextPrompt) and prompt.suffix is None


def _top_logprobs(fields: OllamaAnswerFields) -> int | None:
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidValue("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _constraint(text_format: object) -> Constraint | None:
    if not text_format:
        return None
    return JsonSchema(text_format if isinstance(text_format, dict) else {"type": "object"})


def _thinking(think: bool | str | None) -> Thinking:
    match think:
        case None:
            return Thinking()
        case bool():
            return Thinking(is_enabled=think)
        case "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" as effort:
            return Thinking(is_enabled=effort != "none", effort=effort)
        case _:
            raise InvalidValue("'think' is a boolean, low, medium or high.", param="think")


def _prompt(fields: OllamaGenerateBody) -> Prompt:
    text = fields.prompt or ""
    if not fields.raw and not fields.suffix:
        system = (Message("system", fields.system),) if fields.system else ()
        content = _content(text, fields.images, "images")
        asked = Message("user", content.text, attachments=tuple(content.attachments))
        check_attachment_count((asked,))
        return ChatPrompt((*system, asked), thinking=_thinking(fields.think))
    other = "raw" if fields.raw else "suffix"
    if fields.system:
        raise InvalidValue(f"'system' cannot be combined with '{other}'.", param="system")
    if fields.images:
        raise InvalidValue(f"'images' cannot be combined with '{other}'.", param="images")
    if fields.think:
        raise InvalidValue(f"'think' needs a template, and a prompt with '{other}' has none.", param="think")
    return TextPrompt(text, fields.suffix or None)


def _tool(tool: OllamaTool) -> Tool:
    function = tool.function
    return Tool(function.name, function.description, function.parameters)


def _messages(params: list[OllamaMessage]) -> tuple[Message, ...]:
    """The turns; a tool's answer that names no call belongs to one of the last turn that made any."""
    messages: list[Message] = []
    waiting: list[ToolCall] = []
    for place, message in enumerate(params):
        content = _content(message.content or "", message.images, f"messages[{place}].images")
        calls = _calls(message, place)
        waiting = list(calls) or waiting
        call_id = message.tool_call_id
        if message.role == "tool" and call_id is None:
            call_id = _answered(waiting, message.tool_name)
        messages.append(
            Message(
                message.role,
                content.text,
                reasoning=message.thinking,
                name=message.tool_name,
                tool_call_id=call_id,
                tool_calls=calls,
                attachments=tuple(content.attachments),
            )
        )
    check_attachment_count(messages)
    return tuple(messages)


def _content(text: str, images: list[str] | None, path: str) -> MessageContent:
    """A text with its images: the first ones stand where it marks a place, the others before it."""
    content = MessageContent()
    before, *after = text.split(_IMAGE_MARK, len(images)) if images else (text,)
    paths = [(image, f"{path}[{place}]") for place, image in enumerate(images or ())]
    for image, where in paths[len(after) :]:
        content.show_base64(image, where)
    content.say(before)
    for (image, where), said in zip(paths, after, strict=False):
        content.show_base64(image, where)
        content.say(said)
    return content


def _calls(message: OllamaMessage, place: int) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            call.id or f"call_{place}_{number}",
            call.function.name,
            _arguments(call.function, f"messages[{place}].tool_calls[{number}].function.arguments"),
        )
        for number, call in enumerate(message.tool_calls or ())
    )


def _arguments(function: OllamaToolCallFunction, path: str) -> str:
    text = bytes(function.arguments).decode()
    if text == "null":
        return "{}"
    if not text.startswith("{"):
        raise InvalidValue(f"Invalid value for '{path}': expected an object.", param=path)
    return text


def _answered(waiting: list[ToolCall], name: str | None) -> str | None:
    """The first call of that name that waits for an answer, else the first of all; it no longer waits."""
    named = next((call for call in waiting if call.name == name), waiting[0] if waiting else None)
    if named is None:
        return None
    waiting.remove(named)
    return named.call_id
