"""Grammars that force tool calls, in the form that each family writes them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ganglion.core.request import Choice, JsonValue, Lark, Regex, Tool, ToolUse
from ganglion.text.lark_grammar import ANY_TEXT, LarkRules, either, escaped, quoted, regex
from ganglion.text.tools import deepseek, gemma, tagged, untagged
from ganglion.text.tools.custom import INPUT
from ganglion.text.tools.families import ToolFamily, callable_tools
from ganglion.text.tools.schema_types import types_of

# The words of a schema that say what a value is without `type`.
SHAPES = frozenset({"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"})

# What a property's schema may refer to.
_DEFINITIONS: tuple[str, ...] = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class _CallForm:
    """A block of calls: `opening before call (between call)* after`, and `separator` before the next block.

    With no `between` a block holds one call, and with no `separator` either, the answer does.
    """

    opening: str
    call: Callable[[LarkRules, Tool], str]
    before: str = ""
    between: str | None = None
    after: str = ""
    separator: str | None = None


def arguments(rules: LarkRules, tool: Tool) -> str:
    """A call's arguments as JSON that its schema accepts."""
    return rules.json(_schema(tool), is_strict=tool.is_strict)


def _schema(tool: Tool) -> dict[str, JsonValue]:
    if tool.is_custom:
        return {
            "type": "object",
            "properties": {INPUT: _input_schema(tool)},
            "required": [INPUT],
            "additionalProperties": False,
        }
    schema = dict(tool.parameters or {})
    if SHAPES.isdisjoint(schema):
        schema["type"] = "object"
    # What a schema leaves open the schema still accepts closed, and a small model comes to an end.
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        schema |= {"properties": schema.get("properties", {}), "additionalProperties": False}
    return schema


def _input_schema(tool: Tool) -> dict[str, JsonValue]:
    match tool.text_format:
        case Regex(pattern=pattern):
            return {"type": "string", "pattern": f"^(?:{pattern})$"}
        case Choice(options=options):
            return {"type": "string", "enum": list(options)}
        case _:
            # A grammar of the text says nothing of its escaped form, so here the text is free.
            return {"type": "string"}


def _named(key: str) -> Callable[[LarkRules, Tool], str]:
    def call(rules: LarkRules, tool: Tool) -> str:
        head = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '
        return f'{quoted(head)} {arguments(rules, tool)} "}}"'

    return call


def _hermes(rules: LarkRules, tool: Tool) -> str:
    if tool.is_custom and isinstance(tool.text_format, Lark):
        return _xml(rules, tool)
    return f'"\\n" {_named("arguments")(rules, tool)} "\\n" {rules.marker(tagged.CLOSING)}'


def _xml(rules: LarkRules, tool: Tool) -> str:
    def member(name: str, schema: JsonValue) -> str:
        head = quoted(f"<parameter={name}>\n")
        return f"{head} {_xml_value(rules, tool, schema)}"

    head = quoted(f"\n<function={tool.name}>\n")
    return f'{head} {_members(rules, tool, member, "")} "</function>\\n" {rules.marker(tagged.CLOSING)}'


def _xml_value(rules: LarkRules, tool: Tool, schema: JsonValue) -> str:
    end = "\n</parameter>\n"
    text = _text_value(rules, tool, schema, is_only=False)
    if tool.is_custom and isinstance(tool.text_format, Lark):
        text = rules.nested(tool.text_format.grammar)
    elif tool.is_custom and isinstance(tool.text_format, Regex):
        text = rules.add(regex(tool.text_format.pattern))
    elif text == ANY_TEXT:
        return rules.until(end)
    elif text is None:
        text = _json_value(rules, tool, schema)
    return f"{text} {quoted(end)}"


def _python(rules: LarkRules, tool: Tool) -> str:
    def member(name: str, schema: JsonValue) -> str:
        return f"{quoted(name + '=')} {_json_value(rules, tool, schema)}"

    return f'{quoted(tool.name + "(")} {_members(rules, tool, member, ", ")} ")"'


def _gemma(quote: str, closing: str) -> Callable[[LarkRules, Tool], str]:
    def call(rules: LarkRules, tool: Tool) -> str:
        def member(name: str, schema: JsonValue) -> str:
            text = _text_value(rules, tool, schema, is_only=True)
            if text is None:
                value = _json_value(rules, tool, schema)
            elif text == ANY_TEXT:
                value = f"{rules.marker(quote)} {rules.until(quote)}"
            else:
                value = f"{rules.marker(quote)} {text} {rules.marker(quote)}"
            return f"{quoted(name + ':')} {value}"

        members = _members(rules, tool, member, ",")
        return f'{quoted(f"call:{tool.name}{{")} {members} "}}" {rules.marker(closing)}'

    return call


def _text_value(rules: LarkRules, tool: Tool, schema: JsonValue, *, is_only: bool) -> str | None:
    """A value that is written without quotes: free text, or one of some; None where it is JSON.

    Text that may also be something else is text where that is how it is read, not where it is the only type.
    """
    types = types_of(schema, tool.parameters)
    if not isinstance(schema, dict) or (not types and not is_only):
        return ANY_TEXT
    if types != {"string"}:
        return ANY_TEXT if "string" in types and not is_only else None
    options = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(options, list):
        return ANY_TEXT
    return rules.add(either([quoted(one) for one in options if isinstance(one, str)]))


def _json_value(rules: LarkRules, tool: Tool, schema: JsonValue) -> str:
    parameters = tool.parameters or {}
    shared = {word: parameters[word] for word in _DEFINITIONS if word in parameters}
    return rules.json((schema if isinstance(schema, dict) else {}) | shared, is_strict=tool.is_strict)


def _members(rules: LarkRules, tool: Tool, member: Callable[[str, JsonValue], str], separator: str) -> str:
    """The properties of a tool's schema in their order, the required ones first."""
    schema = _schema(tool)
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not properties:
        return ""
    names = required if isinstance(required, list) else []
    musts = [rules.add(member(name, one)) for name, one in properties.items() if name in names]
    mays = [rules.add(member(name, one)) for name, one in properties.items() if name not in names]
    between = f"{quoted(separator)} " if separator else ""
    if musts or not separator:
        first = f" {between}".join(musts)
        return " ".join([first, *[f"({between}{one})?" for one in mays]])
    # Whichever comes first has no separator before it.
    chains = [
        " ".join([one, *[f"({between}{later})?" for later in mays[at + 1 :]]]) for at, one in enumerate(mays)
    ]
    return f"({either(chains)})?"


def _mistral_args(rules: LarkRules, tool: Tool) -> str:
    return f"{quoted(tool.name)} {rules.marker(untagged.ARGS)} {arguments(rules, tool)}"


def _deepseek(rules: LarkRules, tool: Tool) -> str:
    head = f'{rules.marker(deepseek.CALL)} "function" {rules.marker(deepseek.SEPARATOR)}'
    name = quoted(f"{tool.name}\n```json\n")
    return f'{head} {name} {arguments(rules, tool)} "\\n```" {rules.marker(deepseek.CALL_END)}'


def _deepseek_plain(rules: LarkRules, tool: Tool) -> str:
    head = f"{rules.marker(deepseek.CALL)} {quoted(tool.name)} {rules.marker(deepseek.SEPARATOR)}"
    return f"{head} {arguments(rules, tool)} {rules.marker(deepseek.CALL_END)}"


def _harmony(rules: LarkRules, tool: Tool) -> str:
    """A channel to the tool; the turn is begun by the prompt, or by the model after it has thought."""
    if tool.is_custom and isinstance(tool.text_format, Lark):
        content = rules.nested(tool.text_format.grammar)
    else:
        content = arguments(rules, tool)
    turn = f'({rules.marker("<|start|>")} "assistant")? {rules.marker("<|channel|>")}'
    recipient = quoted(f"commentary to=functions.{tool.name} ")
    return (
        f'{turn} {recipient} {rules.marker("<|constrain|>")} "json" {rules.marker("<|message|>")} {content}'
    )


FORMS = {
    "generic": _CallForm(tagged.OPENING, _hermes, separator="\n"),
    "hermes": _CallForm(tagged.OPENING, _hermes, separator="\n"),
    "qwen_xml": _CallForm(tagged.OPENING, _xml, separator="\n"),
    "llama": _CallForm("", _named("parameters")),
    "pythonic": _CallForm("", _python, before="[", between=", ", after="]"),
    "mistral": _CallForm(untagged.TOOL_CALLS, _named("arguments"), before="[", between=", ", after="]"),
    "mistral_args": _CallForm(untagged.TOOL_CALLS, _mistral_args, separator=""),
    "gemma": _CallForm(gemma.OPENING, _gemma(gemma.QUOTE, gemma.CLOSING), separator=""),
    "function_gemma": _CallForm(
        gemma.FUNCTION_OPENING, _gemma(gemma.FUNCTION_QUOTE, gemma.FUNCTION_CLOSING), separator=""
    ),
    "tool_code": _CallForm(untagged.TOOL_CODE, _python, before="\n", between="\n", after="\n```"),
    "deepseek": _CallForm(deepseek.SECTION, _deepseek, between="\n", after=deepseek.SECTION_END),
    "deepseek_plain": _CallForm(deepseek.SECTION, _deepseek_plain, between="", after=deepseek.SECTION_END),
    "harmony": _CallForm("", _harmony),
}


# The answer's reasoning is not part of it: the grammar begins where the text does.


def tool_call_grammar(
    use: ToolUse,
    family: ToolFamily,
    *,
    is_call_only: bool = False,
    control_ids: Mapping[str, int] | None = None,
) -> str | None:
    """A grammar in llguidance's Lark, from its rule `start`; None where nothing is forced.

    With `required` it is one call, or up to `max_calls` where they may be parallel, in the family's own form.
    With `auto` and a strict tool it is text with calls in it, where the family opens a call with a marker;
    where it opens none nothing can be forced. All of a grammar's calls fit their schemas, strict or not.
    `is_call_only` asks for calls alone whatever the choice is. `control_ids` are those of the family's
    markers that are control tokens of the model.
    """
    tools = callable_tools(use)
    if not tools:
        return None
    form = FORMS[family.name]
    rules = LarkRules(control_ids or {})
    if use.choice == "required" or is_call_only:
        return rules.source(_calls(rules, form, tools, use.max_calls))
    if not any(tool.is_strict or tool.text_format is not None for tool in tools) or not form.opening:
        return None
    return rules.source(_among_text(rules, form, tools, use.max_calls))


def _calls(rules: LarkRules, form: _CallForm, tools: tuple[Tool, ...], max_calls: int) -> str:
    opening = f"{rules.marker(form.opening)} " if form.opening else ""
    block = rules.add(opening + _inside(rules, form, tools, max_calls))
    if form.separator is None or max_calls == 1:
        return block
    return f"{block} {_more(rules, form.separator, block, max_calls)}"


def _more(rules: LarkRules, between: str, one: str, max_calls: int) -> str:
    """The calls after the first."""
    follower = rules.add(f"{quoted(between)} {one}") if between else one
    return f"{follower}{{0,{max_calls - 1}}}"


def _inside(rules: LarkRules, form: _CallForm, tools: tuple[Tool, ...], max_calls: int) -> str:
    """A block behind its opening."""
    call = rules.add(either([form.call(rules, tool) for tool in tools]))
    parts = [quoted(form.before)] if form.before else []
    parts.append(call)
    if form.between is not None and max_calls > 1:
        parts.append(_more(rules, form.between, call, max_calls))
    if form.after:
        parts.append(rules.marker(form.after))
    return " ".join(parts)


def _among_text(rules: LarkRules, form: _CallForm, tools: tuple[Tool, ...], max_calls: int) -> str:
    """Text that holds the opening marker only where a call follows."""
    blocks = f"{{0,{max_calls}}}"
    inside = rules.add(_inside(rules, form, tools, max_calls))
    if rules.is_control(form.opening):
        text = rules.add(ANY_TEXT, is_terminal=True)
        called = rules.add(f"{rules.marker(form.opening)} {inside} {text}")
        return f"{text} {called}{blocks}"
    before = rules.add(ANY_TEXT, suffix=form.opening)
    after = rules.add(f"{ANY_TEXT} & ~/(.|\\n)*{escaped(form.opening)}(.|\\n)*/", is_terminal=True)
    called = rules.add(f"{before} {inside}")
    return f"{called}{blocks} {after}"
