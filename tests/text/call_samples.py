"""Calls as each family of models writes them, for the tests of reading and forcing."""

from ganglion.core.request import Tool
from ganglion.text.tools.families import FAMILIES, ToolFamily

WEATHER = Tool(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "is_metric": {"type": "boolean"},
            "options": {"type": "object"},
        },
        "required": ["city"],
    },
)
NOW = Tool("now", "The time.", {"type": "object", "properties": {}})
PATCH = Tool("apply_patch", "Applies a patch.", is_custom=True)
TOOLS = (WEATHER, NOW, PATCH)

BAR = "\uff5c"
FAMILY: dict[str, ToolFamily] = {family.name: family for family in FAMILIES}


def deepseek(*calls: str) -> str:
    inside = "".join(f"<{BAR}tool▁call▁begin{BAR}>{call}<{BAR}tool▁call▁end{BAR}>" for call in calls)
    return f"<{BAR}tool▁calls▁begin{BAR}>{inside}<{BAR}tool▁calls▁end{BAR}>"


TWO = [("get_weather", '{"city": "Oslo", "days": 2}'), ("now", "{}")]
"""What each sample below says, spaces in the arguments aside."""

SAMPLES = {
    "generic": '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}</tool_call>'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "llama": '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}; {"name": "now"}',
    "pythonic": '[get_weather(city="Oslo", days=2), now()]',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}, '
    '{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
    "mistral_args": '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 2}'
    "[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}",
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>",
    "function_gemma": "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:2}"
    "<end_function_call><start_function_call>call:now{}<end_function_call>",
    "tool_code": '```tool_code\nget_weather(city="Oslo", days=2)\nnow()\n```',
    "deepseek": deepseek(
        f'function<{BAR}tool▁sep{BAR}>get_weather\n```json\n{{"city": "Oslo", "days": 2}}\n```',
        f"function<{BAR}tool▁sep{BAR}>now\n```json\n{{}}\n```",
    ),
    "deepseek_plain": deepseek(
        f'get_weather<{BAR}tool▁sep{BAR}>{{"city": "Oslo", "days": 2}}', f"now<{BAR}tool▁sep{BAR}>{{}}"
    ),
    "harmony": '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", '
    '"days": 2}<|call|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>',
}
