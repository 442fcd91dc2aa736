"""The tools of a chat body, and the choice among them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, assert_never

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Constraint, Lark, Regex, Tool, ToolUse
from ganglion.wire.constraint import Grammar, schema_of

# `$` alone would let a line break stand behind the name.
_ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.\-]{1,128}(?!\n)$")]


class ChatFunction(Struct, frozen=True):
    name: _ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool that takes JSON."""

    function: ChatFunction


class ChatGrammarDefinition(Struct, frozen=True):
    definition: Grammar
    syntax: Literal["lark", "regex"]


class ChatTextInput(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ChatGrammarInput(Struct, frozen=True, tag_field="type", tag="grammar"):
    """Text of a grammar."""

    grammar: ChatGrammarDefinition


class ChatCustom(Struct, frozen=True):
    name: _ToolName
    description: str | None = None
    format: ChatTextInput | ChatGrammarInput | None = None


class ChatCustomTool(Struct, frozen=True, tag_field="type", tag="custom"):
    """A tool that takes text."""

    custom: ChatCustom


ChatTool = ChatFunctionTool | ChatCustomTool


class ToolReference(Struct, frozen=True):
    name: str


class FunctionReference(Struct, frozen=True, tag_field="type", tag="function"):
    """Exactly this function."""

    function: ToolReference


class CustomToolReference(Struct, frozen=True, tag_field="type", tag="custom"):
    """Exactly this custom tool."""

    custom: ToolReference


class AllowedToolList(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionReference | CustomToolReference], Meta(min_length=1, max_length=1024)]


class AllowedTools(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """Only these tools."""

    allowed_tools: AllowedToolList


ToolChoice = Literal["none", "auto", "required"] | FunctionReference | CustomToolReference | AllowedTools


def tool_use_of(given: list[ChatTool] | None, choice: ToolChoice | None, is_parallel: bool | None) -> ToolUse:
    """The tools and how they may be used; raises InvalidValue for names that are twice there or nowhere."""
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(given or ()))
    _check_names(tools)
    use = ToolUse(tools, is_parallel=is_parallel is not False)
    match choice:
        case None:
            return use
        case "none" | "auto" | "required":
            if choice == "required" and not tools:
                raise InvalidValue("'tool_choice' needs tools and there are none.", param="tool_choice")
            return replace(use, choice=choice)
        case FunctionReference() | CustomToolReference():
            return replace(use, choice="required", allowed=_names(tools, [choice], "tool_choice"))
        case AllowedTools(allowed_tools=allowed):
            names = _names(tools, allowed.tools, "tool_choice.allowed_tools.tools")
            return replace(use, choice=allowed.mode, allowed=names)
        case _:
            assert_never(choice)


def _tool(tool: ChatTool, path: str) -> Tool:
    match tool:
        case ChatFunctionTool(function=function):
            parameters = function.parameters
            return Tool(
                function.name,
                function.description,
                None if parameters is None else schema_of(parameters, f"{path}.function.parameters"),
                is_strict=bool(function.strict),
            )
        case ChatCustomTool(custom=custom):
            return Tool(
                custom.name,
                custom.description,
                is_custom=True,
                text_format=_text_format(custom.format),
            )
        case _:
            assert_never(tool)


def _text_format(wanted: ChatTextInput | ChatGrammarInput | None) -> Constraint | None:
    if not isinstance(wanted, ChatGrammarInput):
        return None
    grammar = wanted.grammar
    return Lark(grammar.definition) if grammar.syntax == "lark" else Regex(grammar.definition)


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            kind = "custom" if tool.is_custom else "function"
            raise InvalidValue(
                f"The tool {tool.name!r} is defined twice.", param=f"tools[{place}].{kind}.name"
            )
        seen.add(tool.name)


def _names(
    tools: tuple[Tool, ...], chosen: Sequence[FunctionReference | CustomToolReference], param: str
) -> tuple[str, ...]:
    known = {(tool.name, tool.is_custom) for tool in tools}
    names: list[str] = []
    for each in chosen:
        is_custom = isinstance(each, CustomToolReference)
        name = each.custom.name if isinstance(each, CustomToolReference) else each.function.name
        if (name, is_custom) not in known:
            kind = "custom tool" if is_custom else "function"
            raise InvalidValue(f"The {kind} {name[:128]!r} is not among 'tools'.", param=param)
        names.append(name)
    return tuple(dict.fromkeys(names))


class LegacyFunctionChoice(Struct, frozen=True):
    name: _ToolName


FunctionChoice = Literal["none", "auto"] | LegacyFunctionChoice


def legacy_tool_use(
    functions: list[ChatFunction],
    choice: FunctionChoice | None,
    tools: list[ChatTool] | None,
    tool_choice: ToolChoice | None,
) -> ToolUse:
    """The functions as tools; raises InvalidValue where both are asked for."""
    if tools or tool_choice is not None:
        raise InvalidValue("'functions' and 'tools' mean the same, so give one.", param="functions")
    chosen = (
        FunctionReference(ToolReference(choice.name)) if isinstance(choice, LegacyFunctionChoice) else choice
    )
    return tool_use_of([ChatFunctionTool(function) for function in functions], chosen, is_parallel=False)


def legacy_call_id(place: int) -> str:
    """The id that a call of the message at this place gets, since functions had none."""
    return f"call_{place}"
