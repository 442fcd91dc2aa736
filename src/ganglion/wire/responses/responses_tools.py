"""The tools of a Responses body, the choice among them, and the names of their calls on this wire.

Functions and custom tools are offered. A namespace is flattened into its tools, whose names a model sees as
`namespace__name`; its calls go out with both parts again. Tools that a vendor hosts are left out, with a
warning, and echoed like all others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from ganglion.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from ganglion.core.request import Constraint, Lark, Regex, Tool, ToolUse
from ganglion.wire.decode import FIELDS, decode
from ganglion.wire.responses.items import Name

_Mode = Literal["none", "auto", "required"]

_MAX_GRAMMAR = 2**16
_CALLABLE = ("function", "custom")
_PLAIN_NAMESPACE = "functions"
"""What Codex calls the place of tools that have no namespace."""


class ResponsesTextInput(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ResponsesGrammarInput(Struct, frozen=True, tag_field="type", tag="grammar"):
    """Text of a grammar."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(max_length=_MAX_GRAMMAR)]


class ResponsesFunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesCustomTool(Struct, frozen=True, tag_field="type", tag="custom"):
    name: Name
    description: str | None = None
    format: ResponsesTextInput | ResponsesGrammarInput | None = None


class NamespaceTool(Struct, frozen=True, tag_field="type", tag="namespace"):
    name: Name
    tools: Annotated[list[Raw], Meta(max_length=1024)]


class _Typed(Struct, frozen=True):
    type: str


class _Chosen(Struct, frozen=True):
    """A tool as a choice names it."""

    type: str
    name: str | None = None
    namespace: str | None = None


class _Allowed(Struct, frozen=True):
    """A choice among some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_Chosen], Meta(min_length=1, max_length=1024)]


_typed = msgspec.json.Decoder(_Typed)
_function = msgspec.json.Decoder(ResponsesFunctionTool)
_custom = msgspec.json.Decoder(ResponsesCustomTool)
_namespace = msgspec.json.Decoder(NamespaceTool)
_chosen = msgspec.json.Decoder(_Chosen)
_allowed = msgspec.json.Decoder(_Allowed)
_NULL, _FALSE = Raw(b"null"), Raw(b"false")


@dataclass(frozen=True, slots=True)
class WireToolName:
    """The name of a tool on this wire; the model may know it by a longer one."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(slots=True)
class ToolOffer:
    """Tools as they are collected; `called` is keyed by the names that the model sees."""

    tools: list[Tool] = field(default_factory=list)
    called: dict[str, WireToolName] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, raws: Iterable[Raw], path: str, *, is_repeatable: bool = False) -> None:
        """Take in tools; a repeatable list may name a tool again, which then counts once."""
        for place, raw in enumerate(raws):
            self._add(raw, f"{path}[{place}]", None, is_repeatable)

    def _add(self, raw: Raw, path: str, namespace: str | None, is_repeatable: bool) -> None:
        kind = decode(_typed, raw, path).type
        match kind:
            case "function":
                function = decode(_function, raw, path)
                called = WireToolName(function.name, namespace)
                tool = Tool(
                    name=model_name(function.name, namespace),
                    description=function.description,
                    parameters=function.parameters,
                    is_strict=bool(function.strict),
                )
            case "custom":
                custom = decode(_custom, raw, path)
                called = WireToolName(custom.name, namespace, is_custom=True)
                tool = Tool(
                    name=model_name(custom.name, namespace),
                    description=custom.description,
                    is_custom=True,
                    text_format=_constraint(custom.format),
                )
            case "namespace" if namespace is None:
                inner = decode(_namespace, raw, path)
                for place, each in enumerate(inner.tools):
                    self._add(each, f"{path}.tools[{place}]", inner.name, is_repeatable)
                return
            case _:
                self.warnings.append(f"the tool {kind[:64]!r}, which is not run here")
                return
        if tool.name in self.called:
            if is_repeatable:
                return
            raise InvalidValue(f"Two tools are named {tool.name[:200]!r}.", param=f"{path}.name")
        self.tools.append(tool)
        self.called[tool.name] = called


def model_name(name: str, namespace: str | None) -> str:
    """The one name under which a model sees a tool of a namespace."""
    if namespace is None or namespace == _PLAIN_NAMESPACE:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def echoed(tools: Sequence[Raw] | None) -> tuple[Raw, ...]:
    """The tools as the answer repeats them: as sent, functions with the fields that clients rely on."""
    return tuple(_echoed(raw) for raw in tools or ())


def _echoed(raw: Raw) -> Raw:
    # A frame's data holds no line break, and a client's JSON may: what is repeated is written anew.
    compact = Raw(msgspec.json.format(bytes(raw), indent=-1))
    fields = FIELDS.decode(compact)
    if bytes(fields["type"]) != b'"function"':
        return compact
    filled = {"description": _NULL, "parameters": _NULL} | fields
    if bytes(filled.get("strict", _NULL)) == b"null":
        filled["strict"] = _FALSE
    return Raw(msgspec.json.encode(filled))


def tool_use(choice: _Mode | dict[str, Any] | None, offer: ToolOffer, *, is_parallel: bool) -> ToolUse:
    """The choice among the offered tools."""
    tools = tuple(offer.tools)
    if isinstance(choice, dict):
        mode, names = _chosen_names(choice, offer)
        return ToolUse(tools, mode, names, is_parallel)
    if choice == "required" and not tools:
        raise InvalidValue(
            "'tool_choice' is 'required', but there is no tool that could be called.", param="tool_choice"
        )
    return ToolUse(tools, choice or "auto", None, is_parallel)


def _chosen_names(choice: dict[str, Any], offer: ToolOffer) -> tuple[_Mode, tuple[str, ...]]:
    raw = msgspec.json.encode(choice)
    if choice.get("type") == "allowed_tools":
        return _allowed_names(decode(_allowed, raw, "tool_choice"), offer)
    chosen = decode(_chosen, raw, "tool_choice")
    if chosen.type not in _CALLABLE:
        raise UnsupportedParameter(
            f"'tool_choice' asks for the tool {chosen.type[:64]!r}, which is not run here.",
            param="tool_choice",
        )
    return "required", (_named(chosen, offer, "tool_choice"),)


def _allowed_names(allowed: _Allowed, offer: ToolOffer) -> tuple[_Mode, tuple[str, ...]]:
    names = tuple(
        _named(each, offer, f"tool_choice.tools[{place}]")
        for place, each in enumerate(allowed.tools)
        if each.type in _CALLABLE
    )
    if not names and allowed.mode == "required":
        raise InvalidValue(
            "'tool_choice.tools' holds no tool that could be called.", param="tool_choice.tools"
        )
    return allowed.mode, names


def _named(chosen: _Chosen, offer: ToolOffer, path: str) -> str:
    if chosen.name is None:
        raise MissingParameter(f"The parameter '{path}.name' is required.", param=f"{path}.name")
    is_custom = chosen.type == "custom"
    for flat, called in offer.called.items():
        is_meant = called.name == chosen.name and chosen.namespace in (None, called.namespace)
        if called.is_custom is is_custom and (is_meant or flat == chosen.name):
            return flat
    raise InvalidValue(
        f"'{path}' names the {chosen.type} {chosen.name[:200]!r}, which is not among the tools.",
        param=f"{path}.name",
    )


def _constraint(text_format: ResponsesTextInput | ResponsesGrammarInput | None) -> Constraint | None:
    if not isinstance(text_format, ResponsesGrammarInput):
        return None
    return Lark(text_format.definition) if text_format.syntax == "lark" else Regex(text_format.definition)
