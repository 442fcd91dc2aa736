"""The table of tool-call families: how each family of models writes a call, and which templates are whose.

A family's reader begins behind one of its openings; a bare family's also where the text begins, with one of
its bare characters. `harmony` has neither: its calls are channels, and the marker scanner finds those.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ganglion.core.request import Tool, ToolUse
from ganglion.text.tools import deepseek, gemma, tagged, untagged
from ganglion.text.tools.cursor import Cursor, NotACall, Reading

_Reader = Callable[[Cursor, Mapping[str, Tool], str], Reading[None]]

_KNOWS_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """One way to write calls. A template that contains all of one row of `signs` belongs to the family."""

    name: str
    read: _Reader
    openings: tuple[str, ...]
    signs: tuple[tuple[str, ...], ...]
    inner: tuple[str, ...] = ()
    """Markers besides the openings, which like them may come as control tokens."""
    bare: str = ""
    is_shown: bool = False
    """Whether a marker that was no call's is shown though it is a control token: words a model explains."""

    @property
    def markers(self) -> frozenset[str]:
        """Every string that may be a control token of the family."""
        return frozenset(self.openings + self.inner)


def _nothing(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    del cursor, tools, opening
    yield from ()
    raise NotACall


_MISTRAL = (untagged.ARGS, untagged.CALL_ID)
_DEEPSEEK = (deepseek.SECTION_END, deepseek.CALL_END, deepseek.SEPARATOR)

_GENERIC = ToolFamily("generic", tagged.read_tagged, (tagged.OPENING,), (), (tagged.CLOSING,), is_shown=True)
_HERMES = replace(_GENERIC, name="hermes", signs=((tagged.OPENING,),))
_QWEN_XML = replace(
    _GENERIC,
    name="qwen_xml",
    openings=(tagged.OPENING, tagged.FUNCTION),
    signs=((tagged.FUNCTION, "<parameter="),),
)
_LLAMA = ToolFamily(
    "llama",
    untagged.read_llama,
    (untagged.PYTHON_TAG,),
    ((untagged.PYTHON_TAG,), ("<|start_header_id|>",)),
    bare="{[",
)
_PYTHONIC = replace(_LLAMA, name="pythonic", signs=(("[func_name1(",), ("<|python_start|>",)))
MISTRAL = ToolFamily(
    "mistral", untagged.read_mistral, (untagged.TOOL_CALLS,), ((untagged.TOOL_CALLS,),), _MISTRAL
)
_MISTRAL_ARGS = replace(MISTRAL, name="mistral_args", signs=((untagged.TOOL_CALLS, untagged.ARGS),))
_GEMMA = ToolFamily(
    "gemma", gemma.read_gemma, (gemma.OPENING,), ((gemma.OPENING,),), (gemma.CLOSING, gemma.QUOTE)
)
_FUNCTION_GEMMA = ToolFamily(
    "function_gemma",
    gemma.read_gemma,
    (gemma.FUNCTION_OPENING,),
    ((gemma.FUNCTION_OPENING,),),
    (gemma.FUNCTION_CLOSING, gemma.FUNCTION_QUOTE),
)
_TOOL_CODE = ToolFamily(
    "tool_code", untagged.read_tool_code, (untagged.TOOL_CODE,), (("```tool_code",), ("tool_code\n",))
)
DEEPSEEK = ToolFamily(
    "deepseek",
    deepseek.read_deepseek,
    (deepseek.SECTION, deepseek.CALL),
    ((deepseek.SEPARATOR, "```json"),),
    _DEEPSEEK,
)
_DEEPSEEK_PLAIN = replace(DEEPSEEK, name="deepseek_plain", signs=((deepseek.SEPARATOR,), (deepseek.SECTION,)))
_HARMONY = ToolFamily(
    "harmony",
    _nothing,
    (),
    (("<|channel|>", "<|message|>"),),
    ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
)

FAMILIES = (
    _HARMONY,
    DEEPSEEK,
    _DEEPSEEK_PLAIN,
    _GEMMA,
    _FUNCTION_GEMMA,
    _MISTRAL_ARGS,
    MISTRAL,
    _QWEN_XML,
    _PYTHONIC,
    _HERMES,
    _LLAMA,
    _TOOL_CODE,
    _GENERIC,
)
"""In the order they are looked for: what no other model would write first."""


def knows_tools(chat_template: str) -> bool:
    """Whether the template shows the model its tools itself."""
    return _KNOWS_TOOLS.search(chat_template) is not None


def family_of(chat_template: str | None) -> ToolFamily:
    """The family that a template's model writes calls in; ours where the template knows no tools."""
    template = chat_template or ""
    if knows_tools(template):
        for family in FAMILIES:
            if any(all(sign in template for sign in row) for row in family.signs):
                return family
    return _GENERIC


def callable_tools(use: ToolUse) -> tuple[Tool, ...]:
    """The tools that an answer may call."""
    if use.choice == "none":
        return ()
    return tuple(tool for tool in use.tools if use.allowed is None or tool.name in use.allowed)
