"""Builds grammars in llguidance's Lark: literals, patterns, schemas and rules.

JSON is written on one line, with at most one space, after a comma or colon: a small model that may write
newlines and indents writes them without end, and one that may write no space at all is pushed off the tokens
it was trained on.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from ganglion.core.request import JsonValue

_MAX_INTEGER: Final = 2**53 - 1
"""What every JSON reader reads exactly."""

_JSON_OPTIONS: Final[dict[str, JsonValue]] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": True,
}
"""Separators are patterns. `oneOf` is read as `anyOf`: that no second branch fits as well cannot be said."""
_LENIENT: Final[dict[str, JsonValue]] = {"lenient": True}
"""Words of a schema that cannot be enforced are passed over instead of refused."""

_DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""Where a schema holds values instead of schemas."""


def quoted(text: str) -> str:
    """A text as a literal; its lexer takes JSON's strings, without the one control character JSON allows."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def json_of(schema: bool | dict[str, JsonValue], *, is_lenient: bool = False) -> str:
    """JSON that a schema accepts; what the schema says about how it wants to be compiled is ours to say."""
    if schema is False:
        return "%json false"
    own = _bounded(schema) if isinstance(schema, dict) else {}
    assert isinstance(own, dict)
    options = {**_JSON_OPTIONS, **_LENIENT} if is_lenient else _JSON_OPTIONS
    return f"%json {json.dumps({**own, 'x-guidance': options}, ensure_ascii=False)}"


def _bounded(schema: JsonValue) -> JsonValue:
    """The schema with integers that every JSON reader reads exactly, where it says nothing narrower.

    Whatever fits it fits the original; and a model that has begun a number comes to its end.
    """
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _DATA else _bounded(value) for key, value in schema.items()}
    if found.get("type") == "integer" and not _DATA & found.keys():
        if not {"minimum", "exclusiveMinimum"} & found.keys():
            found["minimum"] = min(-_MAX_INTEGER, _limit(found, "maximum", "exclusiveMaximum") - 1)
        if not {"maximum", "exclusiveMaximum"} & found.keys():
            found["maximum"] = max(_MAX_INTEGER, _limit(found, "minimum", "exclusiveMinimum") + 1)
    return found


def _limit(schema: dict[str, JsonValue], *names: str) -> int:
    values = [value for name in names if isinstance(value := schema.get(name), int | float)]
    return int(values[0]) if values and abs(values[0]) < 2**63 else 0


ANY_TEXT = r"/(.|\n)*/"


class LarkRules:
    """Rules of one grammar as they are written down; `control_ids` are markers that are control tokens."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids
        self._lines: list[str] = []

    def source(self, start: str) -> str:
        """The grammar whose `start` is this expression."""
        return "\n".join([f"start: {start}", *self._lines, ""])

    def add(self, expression: str, *, suffix: str | None = None, is_terminal: bool = False) -> str:
        """Write a rule down and return its name."""
        name = f"T{len(self._lines)}" if is_terminal else f"r{len(self._lines)}"
        attribute = "" if suffix is None else f"[suffix={quoted(suffix)}]"
        self._lines.append(f"{name}{attribute}: {expression}")
        return name

    def is_control(self, marker: str) -> bool:
        """Whether the marker is a control token, which no text can spell."""
        return marker in self._control_ids

    def marker(self, text: str) -> str:
        """A marker: its token where it is a control token, else its text."""
        return f"<[{self._control_ids[text]}]>" if text in self._control_ids else quoted(text)

    def until(self, marker: str) -> str:
        """Any text and the marker that ends it."""
        if self.is_control(marker):
            return f"{self.add(ANY_TEXT)} {self.marker(marker)}"
        return self.add(ANY_TEXT, suffix=marker)

    def json(self, schema: dict[str, JsonValue], *, is_strict: bool) -> str:
        """JSON of a schema; one that is not strict may hold words that cannot be enforced."""
        return self.add(json_of(schema, is_lenient=not is_strict))

    def nested(self, grammar: str) -> str:
        """A whole grammar of its own."""
        return self.add("%lark {\n" + grammar + "\n}")


def regex(pattern: str) -> str:
    """A pattern as Lark writes it, whatever slashes and line ends it holds."""
    written: list[str] = []
    is_escaped = False
    for char in pattern:
        written.append("\\/" if char == "/" and not is_escaped else "\\n" if char == "\n" else char)
        is_escaped = char == "\\" and not is_escaped
    return "/" + "".join(written) + "/"


def escaped(text: str) -> str:
    """A text as a pattern; Python's own escaping says more than this dialect accepts."""
    return re.sub(r"[\\\[\]{}()|.*+?^$/]", r"\\\g<0>", text)


def either(options: list[str]) -> str:
    """One of several expressions."""
    return options[0] if len(options) == 1 else "(" + " | ".join(options) + ")"
