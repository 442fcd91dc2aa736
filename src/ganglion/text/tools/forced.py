"""The grammar of an answer that must call, or whose calls must fit their schemas.

The answer's reasoning is not part of it: the grammar begins where the text does.
"""

from collections.abc import Mapping

from ganglion.core.request import Tool, ToolUse
from ganglion.text.lark import quoted
from ganglion.text.tools.families import ToolFamily, callable_tools
from ganglion.text.tools.forms import FORMS, Form
from ganglion.text.tools.lark import ANYTHING, Rules, either, escaped


def forced(
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
    rules = Rules(control_ids or {})
    if use.choice == "required" or is_call_only:
        return rules.source(_calls(rules, form, tools, use.max_calls))
    if not any(tool.is_strict or tool.text_format is not None for tool in tools) or not form.opening:
        return None
    return rules.source(_among_text(rules, form, tools, use.max_calls))


def _calls(rules: Rules, form: Form, tools: tuple[Tool, ...], max_calls: int) -> str:
    opening = f"{rules.marker(form.opening)} " if form.opening else ""
    block = rules.add(opening + _inside(rules, form, tools, max_calls))
    if form.separator is None or max_calls == 1:
        return block
    return f"{block} {_more(rules, form.separator, block, max_calls)}"


def _more(rules: Rules, between: str, one: str, max_calls: int) -> str:
    """Those after the first."""
    follower = rules.add(f"{quoted(between)} {one}") if between else one
    return f"{follower}{{0,{max_calls - 1}}}"


def _inside(rules: Rules, form: Form, tools: tuple[Tool, ...], max_calls: int) -> str:
    """A block behind its opening."""
    call = rules.add(either([form.call(rules, tool) for tool in tools]))
    parts = [quoted(form.before)] if form.before else []
    parts.append(call)
    if form.between is not None and max_calls > 1:
        parts.append(_more(rules, form.between, call, max_calls))
    if form.after:
        parts.append(rules.marker(form.after))
    return " ".join(parts)


def _among_text(rules: Rules, form: Form, tools: tuple[Tool, ...], max_calls: int) -> str:
    """Text that holds the opening marker only where a call follows."""
    blocks = f"{{0,{max_calls}}}"
    inside = rules.add(_inside(rules, form, tools, max_calls))
    if rules.is_control(form.opening):
        text = rules.add(ANYTHING, is_terminal=True)
        called = rules.add(f"{rules.marker(form.opening)} {inside} {text}")
        return f"{text} {called}{blocks}"
    before = rules.add(ANYTHING, suffix=form.opening)
    after = rules.add(f"{ANYTHING} & ~/(.|\\n)*{escaped(form.opening)}(.|\\n)*/", is_terminal=True)
    called = rules.add(f"{before} {inside}")
    return f"{called}{blocks} {after}"
