"""Rules of a grammar in llguidance's Lark, with names of their own."""

import re
from collections.abc import Mapping

from ganglion.core.request import JsonValue
from ganglion.text.lark import json_of, quoted

ANYTHING = r"/(.|\n)*/"


class Rules:
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
            return f"{self.add(ANYTHING)} {self.marker(marker)}"
        return self.add(ANYTHING, suffix=marker)

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
