"""Tools and earlier calls as chat templates take them.

A template that knows tools gets them as Hugging Face's dialect has them. For one that knows none, tools are
described in the system message and calls and results are written into the messages' text: there is no other
way to tell the model, and this is the one place where we add to a prompt.
"""

import hashlib
import json
from dataclasses import replace

from ganglion.core.request import JsonValue, Message, Tool, ToolCall
from ganglion.text.tools.custom import INPUT

_CALL_ID_CHARACTERS = 9

INSTRUCTIONS = """\
# Tools

You can call functions to help with the request. Their signatures, one JSON object a line, are between \
<tools> and </tools>:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{{"name": "<function name>", "arguments": {{<arguments as JSON>}}}}
</tool_call>

Each call stands in its own <tool_call> block. What a call returned comes back between <tool_response> and \
</tool_response>."""


def function_schema(tool: Tool) -> dict[str, JsonValue]:
    """A tool as templates expect it; a custom one is a function of one string."""
    parameters: JsonValue = (
        tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    )
    if tool.is_custom:
        parameters = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description or "", "parameters": parameters},
    }


class _ToolArguments(dict[str, JsonValue]):
    """A call's arguments for templates: a mapping, which reads as JSON where a template wants text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: object) -> str:
        return str(self) + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + str(self)


def parse_arguments(call: ToolCall) -> _ToolArguments:
    """A call's arguments as a mapping; text that is no JSON object is a custom tool's input."""
    try:
        found = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return _ToolArguments(found if isinstance(found, dict) else {INPUT: call.arguments})


def short_id(call_id: str) -> str:
    """Nine characters for templates that accept no other length, the same for the same id."""
    if len(call_id) == _CALL_ID_CHARACTERS and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_CALL_ID_CHARACTERS]


def with_tool_names(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages, each result with the name of the tool whose call it answers."""
    names = {call.call_id: call.name for message in messages for call in message.tool_calls}
    return tuple(
        replace(message, name=names.get(message.tool_call_id or ""))
        if message.role == "tool" and message.name is None
        else message
        for message in messages
    )


def calls_as_text(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages with calls and results as text, for a template that knows neither.

    Results that follow each other are one turn, because many such templates want turns to alternate.
    """
    written: list[Message] = []
    is_after_result = False
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.content}\n</tool_response>"
            if is_after_result:
                result = f"{written.pop().content}\n{result}"
            written.append(Message("user", result))
        elif message.tool_calls:
            calls = [_call(call) for call in message.tool_calls]
            content = "\n".join([message.content, *calls] if message.content else calls)
            written.append(replace(message, content=content, tool_calls=()))
        else:
            written.append(message)
        is_after_result = message.role == "tool"
    return tuple(written)


def with_tool_instructions(messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> tuple[Message, ...]:
    """The messages with the tools described before the first system message's text, or in a new one."""
    words = _instructions(tools)
    for position, message in enumerate(messages):
        if message.role in ("system", "developer"):
            told = replace(message, content=f"{words}\n\n{message.content}")
            return (*messages[:position], told, *messages[position + 1 :])
    return (Message("system", words), *messages)


def _instructions(tools: tuple[Tool, ...]) -> str:
    lines = [json.dumps(function_schema(tool), ensure_ascii=False) for tool in tools]
    return INSTRUCTIONS.format(tools="\n".join(lines))


def _call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {parse_arguments(call)}}}\n</tool_call>'
