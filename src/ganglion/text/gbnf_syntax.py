"""What a grammar in llama.cpp's GBNF says: its rules as values, read in time linear in the text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ganglion.core.errors import InvalidValue

DEEPEST: Final = 64
"""Groups in groups; what compiles grammars goes no deeper either."""

_TOKEN: Final = re.compile(
    r"""(?P<skip>(?:\s+|\#[^\n]*)+)
    | (?P<rule>[A-Za-z0-9_-]+)(?=\s*::=) | (?P<defines>::=)
    | (?P<name>[A-Za-z0-9_-]+)
    | "(?P<text>(?:[^"\\\n]|\\.)*)"
    | \[(?P<set>(?:[^\]\\\n]|\\.)*)\]
    | (?P<times>[*+?]|\{\s*\d{1,9}\s*(?:,\s*(?:\d{1,9})?\s*)?\})
    | (?P<sign>[|()]) | (?P<any>\.)""",
    re.VERBOSE,
)
_CHARACTER: Final = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|(.)", re.DOTALL
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}


@dataclass(frozen=True, slots=True)
class Literal:
    """These characters."""

    text: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character that the pattern matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Reference:
    """What another rule says."""

    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """One of these sequences."""

    alternatives: "tuple[Sequence, ...]"


@dataclass(frozen=True, slots=True)
class Element:
    """One part of a sequence; `times` is how often, in signs that Lark shares, or nothing."""

    item: Literal | OneOf | Reference | Group
    times: str = ""


Sequence = tuple[Element, ...]
Rules = dict[str, tuple[Sequence, ...]]


def parse(grammar: str) -> Rules:
    """The rules in their order; raises InvalidValue where it is not GBNF."""
    used: set[str] = set()
    bodies: dict[str, list[re.Match[str]]] = {}
    body: list[re.Match[str]] | None = None
    for found in _tokens(grammar):
        if found.lastgroup == "rule":
            if found["rule"] in bodies:
                raise refusal(f"the rule {found['rule']!r} is defined twice")
            body = bodies[found["rule"]] = []
        elif body is None:
            raise refusal("a rule begins with its name and ::=")
        elif found.lastgroup != "defines":
            body.append(found)
        if found.lastgroup == "name":
            used.add(found["name"])
    for name in sorted(used - bodies.keys()):
        raise refusal(f"the rule {name!r} is used and not defined")
    return {name: _alternatives(iter(tokens), depth=0) for name, tokens in bodies.items()}


def refusal(reason: str) -> InvalidValue:
    """Why a text is no grammar."""
    return InvalidValue(f"The GBNF grammar cannot be read: {reason}.", param="response_format")


def _tokens(grammar: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None:
            raise refusal(f"nothing was expected like {grammar[at : at + 20]!r} at character {at}")
        at = found.end()
        if found.lastgroup != "skip":
            yield found


def _alternatives(tokens: Iterator[re.Match[str]], *, depth: int) -> tuple[Sequence, ...]:
    """Everything up to the end of the rule, or of the group when it is one."""
    if depth > DEEPEST:
        raise refusal(f"groups are nested more than {DEEPEST} deep")
    done: list[Sequence] = []
    elements: list[Element] = []
    for found in tokens:
        match found.lastgroup:
            case "sign" if found[0] == "|":
                done.append(tuple(elements))
                elements = []
            case "sign" if found[0] == "(":
                elements.append(Element(Group(_alternatives(tokens, depth=depth + 1))))
            case "sign" if depth == 0:
                raise refusal("a parenthesis is closed that was not opened")
            case "sign":
                return (*done, tuple(elements))
            case "times":
                if not elements or elements[-1].times:
                    raise refusal(f"there is nothing that {found[0]!r} could repeat")
                elements[-1] = Element(elements[-1].item, re.sub(r"\s", "", found[0]))
            case _:
                elements.append(Element(_item(found)))
    if depth:
        raise refusal("a parenthesis is not closed")
    return (*done, tuple(elements))


def _item(found: re.Match[str]) -> Literal | OneOf | Reference:
    match found.lastgroup:
        case "name":
            return Reference(found["name"])
        case "text":
            return Literal("".join(_characters(found["text"])))
        case "set":
            return OneOf(_set(found["set"]))
        case _:
            return OneOf(r"(.|\n)")


def _characters(text: str) -> list[str]:
    characters = []
    for two, four, eight, escaped, plain in _CHARACTER.findall(text):
        if number := two or four or eight:
            if int(number, 16) > 0x10FFFF:
                raise refusal(f"there is no character {number}")
            characters.append(chr(int(number, 16)))
        elif escaped and escaped not in _ESCAPES:
            raise refusal(f"the escape \\{escaped} is not known")
        else:
            characters.append(_ESCAPES[escaped] if escaped else plain)
    return characters


def _set(text: str) -> str:
    """A set of characters as a pattern; every one by its number, so that none has a second meaning."""
    is_negated = text.startswith("^")
    characters = _characters(text[1:] if is_negated else text)
    if not characters:
        raise refusal("a set of characters is empty")
    last = len(characters) - 1
    spelt = [
        "-" if character == "-" and 0 < at < last else rf"\x{{{ord(character):x}}}"
        for at, character in enumerate(characters)
    ]
    return f"[{'^' if is_negated else ''}{''.join(spelt)}]"
