"""Encodes a request as the body of `POST /v1/chat/completions`: the reverse of `parse`.

Law: what the other server cannot be asked for is refused by name, never left out. The answer is always
streamed, with its usage.
"""

from typing import assert_never

import msgspec

from ganglion.core.request import (
    ChatPrompt,
    Choice,
    Constraint,
    Gbnf,
    JsonSchema,
    Lark,
    Message,
    Regex,
    Request,
    Steer,
    Tool,
    ToolUse,
    WithoutWords,
)
from ganglion.wire.fields import sampler_fields
from ganglion.wire.upstream.foreign_request import (
    RequestFields,
    content_of,
    foreign_fields,
    sampling_fields,
    unsupported,
)

_encode = msgspec.json.Encoder().encode
_STREAMED: RequestFields = {"stream": True, "stream_options": {"include_usage": True}}


def encode_request(request: Request, model: str, *, is_ours: bool) -> bytes:
    """The body that asks a server for this answer under its own name of the model.

    Raises UnsupportedParameter for what that server cannot be asked for.
    """
    prompt = _chat(request)
    body = _our_body(request, prompt) if is_ours else foreign_fields(request, prompt)
    return _encode(
        {"model": model, **{name: value for name, value in body.items() if value is not None}, **_STREAMED}
    )


def _chat(request: Request) -> ChatPrompt:
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        raise unsupported("prompt", "A prompt that is no chat")
    if request.score is not None:
        raise unsupported("prompt_logprobs", "The prompt's own logprobs")
    if request.wants_token_ids:
        raise unsupported("return_token_ids", "The ids of the tokens")
    return prompt


def _our_body(request: Request, prompt: ChatPrompt) -> RequestFields:
    thinking = prompt.thinking
    arguments, is_enabled = dict(prompt.template_arguments), thinking.is_enabled
    if thinking.budget_tokens is not None:
        # A node of an earlier version has no field for a budget; a template hears of it under this name.
        arguments.setdefault("thinking_budget", thinking.budget_tokens)
        if is_enabled is None:
            is_enabled = thinking.effort != "none" and thinking.budget_tokens != 0
    return {
        "messages": [_message(message) for message in prompt.messages],
        "chat_template_kwargs": arguments or None,
        "continue_final_message": prompt.is_continued or None,
        "enable_thinking": is_enabled,
        "reasoning_effort": thinking.effort,
        "min_tokens": request.min_tokens or None,
        "priority": request.priority or None,
        "readout": request.wants_readout or None,
        "steering": [_steer(steer) for steer in request.steering] or None,
        "prompt_cache_key": request.affinity or None,
        "stop_token_ids": request.stop.token_ids or None,
        "include_stop_str_in_output": request.stop.is_shown or None,
        "skip_special_tokens": False if request.shows_special else None,
        "truncate_prompt_tokens": request.truncate_prompt,
        **sampling_fields(request),
        **sampler_fields(request.sampling.samplers),
        **_constraint(request.constraint),
        **_tools(prompt.tool_use),
    }


def _message(message: Message) -> RequestFields:
    told: RequestFields = {"role": message.role, "content": content_of(message)}
    if message.name is not None:
        told["name"] = message.name
    if message.role == "tool":
        told["tool_call_id"] = message.tool_call_id or ""
    if message.role == "assistant":
        if message.reasoning is not None:
            told["reasoning_content"] = message.reasoning
        if message.tool_calls:
            # A custom tool's call means the same in a function's words, and no word says which it was.
            told["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
    return told


def _steer(steer: Steer) -> RequestFields:
    told: RequestFields = {"concept": steer.concept, "strength": steer.strength}
    return told if steer.layers is None else {**told, "layers": steer.layers}


def _constraint(constraint: Constraint | None) -> RequestFields:
    body: RequestFields
    match constraint:
        case None:
            body = {}
        case JsonSchema(schema=schema):
            if not isinstance(schema, dict):
                raise unsupported("response_format", "A schema that is no object")
            body = {"guided_json": schema}
        case Regex(pattern=pattern):
            body = {"guided_regex": pattern}
        case Choice(options=options):
            body = {"guided_choice": options}
        case Lark(grammar=grammar):
            body = {"guided_grammar": grammar}
        case Gbnf(grammar=grammar):
            body = {"grammar": grammar}
        case WithoutWords(words=words):
            body = {"bad_words": words}
        case _:
            assert_never(constraint)
    return body


def _tools(use: ToolUse) -> RequestFields:
    body: RequestFields = {"parallel_tool_calls": None if use.is_parallel else False}
    if not use.tools:
        return body if use.choice == "auto" else {**body, "tool_choice": use.choice}
    return {**body, "tools": [_tool(tool) for tool in use.tools], "tool_choice": _choice(use)}


def _tool(tool: Tool) -> RequestFields:
    said: RequestFields = {"name": tool.name}
    if tool.description is not None:
        said["description"] = tool.description
    if tool.is_custom:
        match tool.text_format:
            case None:
                pass
            case Lark(grammar=definition):
                said["format"] = _grammar("lark", definition)
            case Regex(pattern=definition):
                said["format"] = _grammar("regex", definition)
            case _:
                raise unsupported("tools", f"The format of the tool {tool.name!r}")
        return {"type": "custom", "custom": said}
    if tool.parameters is not None:
        said["parameters"] = tool.parameters
    if tool.is_strict:
        said["strict"] = True
    return {"type": "function", "function": said}


def _grammar(syntax: str, definition: str) -> RequestFields:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def _choice(use: ToolUse) -> str | RequestFields | None:
    if use.allowed is None or use.choice == "none":
        return None if use.choice == "auto" else use.choice
    if not use.allowed:
        return "none"
    custom = {tool.name for tool in use.tools if tool.is_custom}
    kinds = [(name, "custom" if name in custom else "function") for name in use.allowed]
    tools = [{"type": kind, kind: {"name": name}} for name, kind in kinds]
    return {"type": "allowed_tools", "allowed_tools": {"mode": use.choice, "tools": tools}}
