"""The tools of a chat body, and which of them an answer may or must call."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, assert_never

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Constraint, Lark, Regex, Tool, ToolUse
from ganglion.wire.constraint import Grammar, schema_of

# `$` alone would let a line break stand behind the name.
ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.\-]{1,128}(?!\n)$")]


class Function(Struct, frozen=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool that takes JSON."""

    function: Function


class GrammarDefinition(Struct, frozen=True):
    definition: Grammar
    syntax: Literal["lark", "regex"]


class TextInput(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class GrammarInput(Struct, frozen=True, tag_field="type", tag="grammar"):
    """Text of a grammar."""

    grammar: GrammarDefinition


class Custom(Struct, frozen=True):
    name: ToolName
    description: str | None = None
    format: TextInput | GrammarInput | None = None


class CustomTool(Struct, frozen=True, tag_field="type", tag="custom"):
    """A tool that takes text."""

    custom: Custom


AnyTool = FunctionTool | CustomTool


class Named(Struct, frozen=True):
    name: str


class NamedFunction(Struct, frozen=True, tag_field="type", tag="function"):
    """Exactly this function."""

    function: Named


class NamedCustom(Struct, frozen=True, tag_field="type", tag="custom"):
    """Exactly this custom tool."""

    custom: Named


class Allowed(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction | NamedCustom], Meta(min_length=1, max_length=1024)]


class AllowedTools(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """Only these tools."""

    allowed_tools: Allowed


ToolChoice = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedTools


def tool_use_of(asked: list[AnyTool] | None, choice: ToolChoice | None, is_parallel: bool | None) -> ToolUse:
    """The tools and how they may be used; raises InvalidValue for names that are twice there or nowhere."""
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(asked or ()))
    _check_names(tools)
    use = ToolUse(tools, is_parallel=is_parallel is not False)
    match choice:
        case None:
            return use
        case "none" | "auto" | "required":
            if choice == "required" and not tools:
                raise InvalidValue("'tool_choice' needs tools and there are none.", param="tool_choice")
            return replace(use, choice=choice)
        case NamedFunction() | NamedCustom():
            return replace(use, choice="required", allowed=_names(tools, [choice], "tool_choice"))
        case AllowedTools(allowed_tools=allowed):
            names = _names(tools, allowed.tools, "tool_choice.allowed_tools.tools")
            return replace(use, choice=allowed.mode, allowed=names)
        case _:
            assert_never(choice)


def _tool(tool: AnyTool, path: str) -> Tool:
    match tool:
        case FunctionTool(function=function):
            parameters = function.parameters
            return Tool(
                function.name,
                function.description,
                None if parameters is None else schema_of(parameters, f"{path}.function.parameters"),
                is_strict=bool(function.strict),
            )
        case CustomTool(custom=custom):
            return Tool(
                custom.name,
                custom.description,
                is_custom=True,
                text_format=_text_format(custom.format),
            )
        case _:
            assert_never(tool)


def _text_format(wanted: TextInput | GrammarInput | None) -> Constraint | None:
    if not isinstance(wanted, GrammarInput):
        return None
    grammar = wanted.grammar
    return Lark(grammar.definition) if grammar.syntax == "lark" else Regex(grammar.definition)


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            kind = "custom" if tool.is_custom else "function"
            raise InvalidValue(f"The tool {tool.name!r} is there twice.", param=f"tools[{place}].{kind}.name")
        seen.add(tool.name)


def _names(
    tools: tuple[Tool, ...], chosen: Sequence[NamedFunction | NamedCustom], param: str
) -> tuple[str, ...]:
    known = {(tool.name, tool.is_custom) for tool in tools}
    names: list[str] = []
    for each in chosen:
        is_custom = isinstance(each, NamedCustom)
        name = each.custom.name if isinstance(each, NamedCustom) else each.function.name
        if (name, is_custom) not in known:
            kind = "custom tool" if is_custom else "function"
            raise InvalidValue(f"The {kind} {name[:128]!r} is not among 'tools'.", param=param)
        names.append(name)
    return tuple(dict.fromkeys(names))
