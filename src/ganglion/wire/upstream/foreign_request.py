"""Encodes the fields of a chat body for another server, as far as all servers spell them alike."""

import base64
from typing import Any

import msgspec

from ganglion.core.attachments import media_type_of
from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import (
    NEAREST_EFFORT,
    Attachment,
    ChatPrompt,
    JsonSchema,
    JsonValue,
    Lark,
    Message,
    Regex,
    Request,
    Tool,
    ToolUse,
    WithoutWords,
)
from ganglion.core.sampling import PARAMS
from ganglion.wire.decode import FIELDS
from ganglion.wire.fields import sampler_fields

RequestFields = dict[str, Any]
"""Ready to be encoded; None means that a field is left out."""


def unsupported(param: str, what: str) -> UnsupportedParameter:
    """Why a field does not travel."""
    return UnsupportedParameter(
        f"{what} cannot be asked of the server that holds this model.",
        param=param,
        hint="Leave it out, or ask for a model of another node.",
    )


def sampling_fields(request: Request) -> RequestFields:
    """The fields of sampling, stop and length."""
    sampling, stop = request.sampling, request.stop
    return {
        **{name: getattr(sampling, name) for name in PARAMS},
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "stop": stop.strings or None,
        "ignore_eos": stop.ignore_eos or None,
        "logprobs": True if request.top_logprobs is not None else None,
        "top_logprobs": request.top_logprobs,
        "max_tokens": request.max_tokens,
    }


# A tool that takes text becomes a function with the one argument `input`, and its grammar a part of its
# description: whoever reads the answer takes the text out again. A developer speaks as the system, which
# every template knows. An effort is the nearest of the words that all of them know. Priorities stay at the
# gateway.

_INPUT = "input"
_encode = msgspec.json.Encoder().encode


def foreign_fields(request: Request, prompt: ChatPrompt) -> RequestFields:
    """The body for a foreign server; raises UnsupportedParameter for what none of them honours."""
    _refuse(request)
    thinking, arguments = prompt.thinking, dict(prompt.template_arguments)
    verbosity = arguments.pop("verbosity", None)
    if thinking.is_enabled is not None:
        arguments.setdefault("enable_thinking", thinking.is_enabled)
    if thinking.budget_tokens is not None:
        arguments.setdefault("thinking_budget", thinking.budget_tokens)
    custom = frozenset(tool.name for tool in prompt.tool_use.tools if tool.is_custom)
    return {
        "messages": [_message(message, custom) for message in prompt.messages],
        "chat_template_kwargs": arguments or None,
        "verbosity": verbosity,
        "reasoning_effort": None if thinking.effort is None else NEAREST_EFFORT[thinking.effort],
        "thinking_budget_tokens": thinking.budget_tokens,
        "continue_final_message": True if prompt.is_continued else None,
        "add_generation_prompt": False if prompt.is_continued else None,
        "repeat_penalty": request.sampling.repetition_penalty,  # llama-server's name for it
        "response_format": _format(request),
        **sampling_fields(request),
        # The likeliest token alone: some servers take no 0 here, and all of them take it so.
        **({"temperature": 0.0, "top_p": None} if request.sampling.top_p == 0 else {}),
        **_tools(prompt.tool_use),
    }


def _refuse(request: Request) -> None:
    stop, samplers = request.stop, sampler_fields(request.sampling.samplers)
    for is_asked, param, what in (
        (request.max_tokens == 0, "max_tokens", "Reading a prompt without answering it"),
        (request.steering, "steering", "Steering"),
        (request.wants_readout, "readout", "A readout"),
        (stop.token_ids, "stop_token_ids", "Stopping at token ids"),
        (request.min_tokens, "min_tokens", "A least number of tokens"),
        (samplers, next(iter(samplers), ""), "This way to choose tokens"),
        (stop.is_shown, "include_stop_str_in_output", "The stop string inside the text"),
        (request.shows_special, "skip_special_tokens", "Control tokens inside the text"),
        (request.truncate_prompt is not None, "truncate_prompt_tokens", "A prompt that is cut"),
        (isinstance(request.constraint, WithoutWords), "bad_words", "Text without some words"),
        (request.keep_markers, "x-include-thinking", "Reasoning with its markers inside the text"),
    ):
        if is_asked:
            raise unsupported(param, what)


def _format(request: Request) -> RequestFields | None:
    constraint = request.constraint
    if constraint is None:
        return None
    if not isinstance(constraint, JsonSchema):
        raise unsupported("response_format", "Text of a grammar other than JSON")
    if constraint.schema == {"type": "object"}:
        return {"type": "json_object"}
    named = {"name": "answer", "schema": constraint.schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def content_of(message: Message) -> str | list[RequestFields]:
    """A message's content: its text, or the parts of one that holds pictures and sounds."""
    if not message.attachments:
        return message.content
    parts: list[RequestFields] = []
    start = 0
    for attachment in message.attachments:
        _say(message.content[start : attachment.at], parts)
        parts.append(_attached(attachment))
        start = attachment.at
    _say(message.content[start:], parts)
    return parts


def _say(text: str, parts: list[RequestFields]) -> None:
    if text:
        parts.append({"type": "text", "text": text})


def _attached(attachment: Attachment) -> RequestFields:
    media_type = media_type_of(attachment.data)
    data = base64.b64encode(attachment.data).decode()
    if attachment.kind == "audio":
        file_format = "wav" if media_type == "audio/wav" else "mp3"
        return {"type": "input_audio", "input_audio": {"data": data, "format": file_format}}
    image: RequestFields = {"url": attachment.url or f"data:{media_type};base64,{data}"}
    if attachment.detail != "auto":
        image["detail"] = attachment.detail
    return {"type": "image_url", "image_url": image}


def _message(message: Message, custom: frozenset[str]) -> RequestFields:
    match message.role:
        case "system" | "developer":
            return {"role": "system", "content": message.content}
        case "tool":
            if message.attachments:
                raise unsupported(message.attachments[0].path, "A picture in the answer of a tool")
            return {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id or ""}
        case "user":
            told: RequestFields = {"role": "user", "content": content_of(message)}
            return told if message.name is None else {**told, "name": message.name}
        case "assistant":
            return _assistant(message, custom)


def _assistant(message: Message, custom: frozenset[str]) -> RequestFields:
    told: RequestFields = {"role": "assistant", "content": message.content}
    if message.reasoning:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        told["content"] = message.content or None
        told["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _arguments(call.arguments, is_custom=call.name in custom),
                },
            }
            for call in message.tool_calls
        ]
    return told


def _arguments(text: str, *, is_custom: bool) -> str:
    # Servers parse the arguments of earlier calls, and some break on text that is no JSON object: also of a
    # custom tool that is not offered any more.
    if not is_custom and _is_object(text):
        return text
    return "{}" if not is_custom and not text.strip() else _encode({_INPUT: text}).decode()


def _is_object(text: str) -> bool:
    try:
        FIELDS.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _tools(use: ToolUse) -> RequestFields:
    tools = use.tools
    if use.allowed is not None:
        # Not every server knows a choice among some: those that may not be called are not offered.
        tools = tuple(tool for tool in tools if tool.name in use.allowed)
    if not tools:
        return {}
    choice: str | RequestFields | None = None if use.choice == "auto" else use.choice
    if use.choice == "required" and use.allowed is not None and len(tools) == 1:
        choice = {"type": "function", "function": {"name": tools[0].name}}
    return {
        "tools": [{"type": "function", "function": _function(tool)} for tool in tools],
        "tool_choice": choice,
        "parallel_tool_calls": None if use.is_parallel else False,
    }


def _function(tool: Tool) -> RequestFields:
    described = _described(tool) if tool.is_custom else tool.description
    said: RequestFields = {"name": tool.name}
    if described is not None:
        said["description"] = described
    if tool.is_custom:
        said["parameters"] = _TEXT
    else:
        said["parameters"] = tool.parameters if tool.parameters is not None else _ANYTHING
    if tool.is_strict:
        said["strict"] = True
    return said


_ANYTHING: dict[str, JsonValue] = {"type": "object", "properties": {}}
_TEXT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {_INPUT: {"type": "string", "description": "The text that the tool is given, as it is."}},
    "required": [_INPUT],
    "additionalProperties": False,
}


def _described(tool: Tool) -> str | None:
    wanted = tool.text_format
    if wanted is None:
        return tool.description
    match wanted:
        case Lark(grammar=grammar):
            rule = f"The input is text of this Lark grammar:\n{grammar}"
        case Regex(pattern=pattern):
            rule = f"The input is text that this regular expression matches:\n{pattern}"
        case _:
            raise unsupported("tools", f"The format of the tool {tool.name!r}")
    return rule if tool.description is None else f"{tool.description}\n\n{rule}"
