"""The tools of a Messages body, and the choice among them."""

from dataclasses import dataclass
from typing import assert_never

from ganglion.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from ganglion.core.request import Tool, ToolUse
from ganglion.wire.decode import read_object
from ganglion.wire.field_policy import MAX_FREE_FORM_BYTES
from ganglion.wire.messages.schema import (
    AnyChoice,
    AutoChoice,
    MessagesTool,
    NamedChoice,
    NoChoice,
    ToolChoice,
    is_absent,
)

_OURS, _THEIRS = "call_", "toolu_"


def tool_use_id(call_id: str) -> str:
    """A call's id for the client."""
    return _THEIRS + call_id.removeprefix(_OURS) if call_id.startswith(_OURS) else call_id


def call_id(tool_use_id: str) -> str:
    """The call's id again, from what the client sent back."""
    return _OURS + tool_use_id.removeprefix(_THEIRS) if tool_use_id.startswith(_THEIRS) else tool_use_id


_CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class MessagesToolUse:
    """The tools a model is told of, and the types of the hosted ones that it is not."""

    use: ToolUse
    dropped: tuple[str, ...] = ()


def tool_use_of(given: list[MessagesTool] | None, choice: ToolChoice | None) -> MessagesToolUse:
    """Sort the tools, or raise what is wrong with them."""
    tools: list[Tool] = []
    dropped: list[str] = []
    for place, each in enumerate(given or ()):
        path = f"tools[{place}]"
        if each.type in (None, _CUSTOM):
            tools.append(_tool(each, path))
        elif not is_absent(each.input_schema):
            raise InvalidValue(
                f"Invalid value for '{path}.type': a tool with an 'input_schema' is '{_CUSTOM}'.",
                param=f"{path}.type",
            )
        else:
            dropped.append(each.type or "")
    _refuse_twins(tools)
    return MessagesToolUse(_use(tuple(tools), choice), tuple(dropped))


def _refuse_twins(tools: list[Tool]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidValue(f"'tools' names {tool.name!r} twice; names must be unique.", param="tools")
        seen.add(tool.name)


def _tool(tool: MessagesTool, path: str) -> Tool:
    if tool.name is None or is_absent(tool.input_schema):
        param = f"{path}.{'name' if tool.name is None else 'input_schema'}"
        raise MissingParameter(f"The parameter '{param}' is required.", param=param)
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        param = f"{path}.allowed_callers"
        raise UnsupportedParameter(
            f"The parameter '{param}' allows nobody to call the tool.",
            param=param,
            hint="Add 'direct': no code is executed here.",
        )
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=read_object(tool.input_schema, f"{path}.input_schema", MAX_FREE_FORM_BYTES),
        is_strict=bool(tool.strict),
    )


def _use(tools: tuple[Tool, ...], choice: ToolChoice | None) -> ToolUse:
    match choice:
        case None:
            return ToolUse(tools)
        case NoChoice():
            return ToolUse(tools, "none")
        case AutoChoice(disable_parallel_tool_use=is_single):
            return ToolUse(tools, "auto", is_parallel=not is_single)
        case AnyChoice(disable_parallel_tool_use=is_single):
            if not tools:
                raise InvalidValue(
                    "'tool_choice' asks for a call, and there is no tool here that could be called.",
                    param="tool_choice",
                    hint="Hosted tools are not run here.",
                )
            return ToolUse(tools, "required", is_parallel=not is_single)
        case NamedChoice(name=name, disable_parallel_tool_use=is_single):
            if name not in {tool.name for tool in tools}:
                raise InvalidValue(
                    f"'tool_choice.name' is {name!r}, which is none of the tools that could be called.",
                    param="tool_choice.name",
                    hint="Hosted tools are not run here.",
                )
            return ToolUse(tools, "required", (name,), is_parallel=not is_single)
        case _:
            assert_never(choice)
