"""What a chat body says of tools."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidRequest
from ganglion.core.request import ChatPrompt, Lark, Regex, Tool, ToolUse
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.chat import parse

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs."}}
TOOLS = (Tool("weather", "Now.", SCHEMA), Tool("shell", "Runs.", is_custom=True))


def used(**fields: object) -> ToolUse:
    messages = [{"role": "user", "content": "hello"}]
    call = parse(json.dumps({"model": "m", "messages": messages} | fields).encode(), ParseContext("a", 1))
    prompt = call.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.tool_use


def named(kind: str, name: str) -> dict[str, object]:
    return {"type": kind, kind: {"name": name}}


def test_functions_and_custom_tools_are_read() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}}
    regex = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
    use = used(
        tools=[
            WEATHER,
            {"type": "function", "function": {"name": "a.b-c_9", "strict": True, "parameters": {}}},
            SHELL,
            {"type": "custom", "custom": {"name": "free", "format": {"type": "text"}}},
            {"type": "custom", "custom": {"name": "lark", "format": grammar}},
            {"type": "custom", "custom": {"name": "regex", "format": regex}},
        ]
    )
    assert use == ToolUse(
        (
            TOOLS[0],
            Tool("a.b-c_9", parameters={}, is_strict=True),
            TOOLS[1],
            Tool("free", is_custom=True),
            Tool("lark", is_custom=True, text_format=Lark("start: /a+/")),
            Tool("regex", is_custom=True, text_format=Regex("a+")),
        )
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolUse(TOOLS)),
        ("auto", ToolUse(TOOLS)),
        ("none", ToolUse(TOOLS, "none")),
        ("required", ToolUse(TOOLS, "required")),
        (named("function", "weather"), ToolUse(TOOLS, "required", ("weather",))),
        (named("custom", "shell"), ToolUse(TOOLS, "required", ("shell",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("custom", "shell")]}},
            ToolUse(TOOLS, "auto", ("shell",)),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [named("custom", "shell"), named("function", "weather")],
                },
            },
            ToolUse(TOOLS, "required", ("shell", "weather")),
        ),
    ],
)
def test_every_choice_is_read(choice: object, expected: ToolUse) -> None:
    assert used(tools=[WEATHER, SHELL], tool_choice=choice) == expected


def test_tools_are_called_in_parallel_unless_told_otherwise() -> None:
    assert used(tools=[SHELL]).is_parallel
    assert used(tools=[SHELL], parallel_tool_calls=True).is_parallel
    assert not used(
        tools=[SHELL], parallel_tool_calls=False, tool_choice=named("custom", "shell")
    ).is_parallel


def test_no_tools_is_no_tools_whatever_else_is_said_of_them() -> None:
    for fields in ({}, {"tools": []}, {"tools": None, "tool_choice": "none"}, {"tool_choice": "auto"}):
        assert used(**fields).tools == ()


def function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f"} | fields}


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


WRONG = [
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [function(name="")]}, "tools[0].function.name"),
    ({"tools": [function(name="a b")]}, "tools[0].function.name"),
    ({"tools": [function(name="a\n")]}, "tools[0].function.name"),
    ({"tools": [function(name="a" * 129)]}, "tools[0].function.name"),
    ({"tools": [function(name="naïve")]}, "tools[0].function.name"),
    ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [function(parameters=True)]}, "tools[0].function.parameters"),
    ({"tools": [function(parameters=nested(200))]}, "tools[0].function.parameters"),
    ({"tools": [function(strict="yes")]}, "tools[0].function.strict"),
    ({"tools": [function(), function()]}, "tools[1].function.name"),
    ({"tools": [function(), {"type": "custom", "custom": {"name": "f"}}]}, "tools[1].custom.name"),
    ({"tools": [function(name=f"f{place}") for place in range(1025)]}, "tools"),
    (
        {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar"}}}]},
        "tools[0].custom.format.grammar",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes", "tools": [WEATHER]}, "tool_choice"),
    ({"tool_choice": {"type": "hosted"}, "tools": [WEATHER]}, "tool_choice.type"),
    ({"tool_choice": named("function", "f")}, "tool_choice"),
    ({"tool_choice": named("function", "shell"), "tools": [SHELL]}, "tool_choice"),
    ({"tool_choice": named("custom", "weather"), "tools": [WEATHER]}, "tool_choice"),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice.allowed_tools.tools",
    ),
    (
        {
            "tools": [WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [named("custom", "shell")]},
            },
        },
        "tool_choice.allowed_tools.tools",
    ),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{"name": ""}]}, "functions[0].name"),
    ({"function_call": {"name": "f"}}, "function_call"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_what_is_wrong_with_tools_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        used(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert len(caught.value.message) < 500


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "function", "custom", "name", "parameters", "format", "allowed_tools"]),
            inner | st.sampled_from(["function", "custom", "allowed_tools", "f"]),
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.lists(anything, max_size=3) | anything, anything)
def test_any_tools_are_read_or_refused(tools: object, choice: object) -> None:
    try:
        used(tools=tools, tool_choice=choice)
    except InvalidRequest as error:
        assert error.status == 400
