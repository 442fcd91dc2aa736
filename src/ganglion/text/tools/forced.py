"""The grammar of an answer that must call, or whose calls must fit their schemas.

The answer's reasoning is not part of it: the grammar begins where the text does.
"""

from collections.abc import Mapping

from ganglion.core.request import Tool, ToolUse
from ganglion.text.lark import quoted
from ganglion.text.tools.families import ToolFamily, callable_tools
from ganglion.text.tools.forms import FORMS, Form
from ganglion.text.tools.lark import ANYTHING, Rules, either, escaped


def forced(use: ToolUse, family: ToolFamily, *, control_ids: Mapping[str, int] | None = None) -> str | None:
    """A grammar in llguidance's Lark, from its rule `start`; None where nothing is forced.

    With `required` it is one call, or several where they may be parallel, in the family's own form. With
    `auto` and a strict tool it is text with calls in it, where the family opens a call with a marker; where
    it opens none nothing can be forced. All of a grammar's calls fit their schemas, strict or not.
    `control_ids` are those of the family's markers that are control
    tokens of the model.
    """
    tools = callable_tools(use)
    if not tools:
        return None
    form = FORMS[family.name]
    rules = Rules(control_ids or {})
    if use.choice == "required":
        return rules.source(_calls(rules, form, tools, use.is_parallel))
    if not any(tool.is_strict or tool.text_format is not None for tool in tools) or not form.opening:
        return None
    return rules.source(_among_text(rules, form, tools, use.is_parallel))


def _calls(rules: Rules, form: Form, tools: tuple[Tool, ...], is_parallel: bool) -> str:
    opening = f"{rules.marker(form.opening)} " if form.opening else ""
    block = rules.add(opening + _inside(rules, form, tools, is_parallel))
    if form.separator is None or not is_parallel:
        return block
    return f"{block} ({quoted(form.separator)} {block})*" if form.separator else f"{block}+"


def _inside(rules: Rules, form: Form, tools: tuple[Tool, ...], is_parallel: bool) -> str:
    """A block behind its opening."""
    call = rules.add(either([form.call(rules, tool) for tool in tools]))
    parts = [quoted(form.before)] if form.before else []
    parts.append(call)
    if form.between is not None and is_parallel:
        parts.append(f"({quoted(form.between)} {call})*" if form.between else f"{call}*")
    if form.after:
        parts.append(rules.marker(form.after))
    return " ".join(parts)


def _among_text(rules: Rules, form: Form, tools: tuple[Tool, ...], is_parallel: bool) -> str:
    """Text that holds the opening marker only where a call follows."""
    inside = rules.add(_inside(rules, form, tools, is_parallel))
    if rules.is_control(form.opening):
        text = rules.add(ANYTHING, is_terminal=True)
        return f"{text} ({rules.marker(form.opening)} {inside} {text})" + ("*" if is_parallel else "?")
    before = rules.add(ANYTHING, suffix=form.opening)
    after = rules.add(f"{ANYTHING} & ~/(.|\\n)*{escaped(form.opening)}(.|\\n)*/", is_terminal=True)
    return f"({before} {inside})" + ("*" if is_parallel else "?") + f" {after}"
