"""Functions, from before there were tools: the same thing in other words, one call an answer."""

from typing import Literal

from msgspec import Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ToolUse
from ganglion.wire.chat.tools import (
    AnyTool,
    Function,
    FunctionTool,
    Named,
    NamedFunction,
    ToolChoice,
    ToolName,
    tool_use_of,
)


class ChosenFunction(Struct, frozen=True):
    name: ToolName


FunctionChoice = Literal["none", "auto"] | ChosenFunction


def legacy_tool_use(
    functions: list[Function],
    choice: FunctionChoice | None,
    tools: list[AnyTool] | None,
    tool_choice: ToolChoice | None,
) -> ToolUse:
    """The functions as tools; raises InvalidValue where both are asked for."""
    if tools or tool_choice is not None:
        raise InvalidValue("'functions' and 'tools' mean the same, so give one.", param="functions")
    chosen = NamedFunction(Named(choice.name)) if isinstance(choice, ChosenFunction) else choice
    return tool_use_of([FunctionTool(function) for function in functions], chosen, is_parallel=False)


def call_id_of(place: int) -> str:
    """The id that a call of the message at this place gets, since functions had none."""
    return f"call_{place}"
