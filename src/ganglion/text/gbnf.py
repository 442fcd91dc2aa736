r"""Translates llama.cpp's GBNF grammars into llguidance's Lark.

GBNF reads character by character; llguidance first cuts text into the longest terminals it can, and of these
one like `[ \n]*` before a rule that wants a newline would take the newline every time. So a grammar without
recursion becomes one terminal, which means exactly the same. In any other, a terminal is only what ends with
something that cannot go on, as a quoted string does, and everything else is taken character by character.

Law: what the translation accepts, the grammar accepts. Where two terminals begin alike it may accept less.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from ganglion.core.errors import InvalidValue
from ganglion.text.lark_grammar import quoted

_DEEPEST: Final = 64
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
class _GbnfLiteral:
    """These characters."""

    text: str


@dataclass(frozen=True, slots=True)
class _GbnfCharacterClass:
    """One character that the pattern matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class _GbnfReference:
    """A reference to another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class _GbnfGroup:
    """One of these sequences."""

    alternatives: "tuple[_GbnfSequence, ...]"


@dataclass(frozen=True, slots=True)
class _GbnfElement:
    """One part of a sequence; `times` is how often, in signs that Lark shares, or nothing."""

    item: _GbnfLiteral | _GbnfCharacterClass | _GbnfReference | _GbnfGroup
    times: str = ""


_GbnfSequence = tuple[_GbnfElement, ...]
_GbnfRules = dict[str, tuple[_GbnfSequence, ...]]


def parse(grammar: str) -> _GbnfRules:
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


def _alternatives(tokens: Iterator[re.Match[str]], *, depth: int) -> tuple[_GbnfSequence, ...]:
    """Everything up to the end of the rule, or of the group when it is one."""
    if depth > _DEEPEST:
        raise refusal(f"groups are nested more than {_DEEPEST} deep")
    done: list[_GbnfSequence] = []
    elements: list[_GbnfElement] = []
    for found in tokens:
        match found.lastgroup:
            case "sign" if found[0] == "|":
                done.append(tuple(elements))
                elements = []
            case "sign" if found[0] == "(":
                elements.append(_GbnfElement(_GbnfGroup(_alternatives(tokens, depth=depth + 1))))
            case "sign" if depth == 0:
                raise refusal("a parenthesis is closed that was not opened")
            case "sign":
                return (*done, tuple(elements))
            case "times":
                if not elements or elements[-1].times:
                    raise refusal(f"there is nothing that {found[0]!r} could repeat")
                elements[-1] = _GbnfElement(elements[-1].item, re.sub(r"\s", "", found[0]))
            case _:
                elements.append(_GbnfElement(_item(found)))
    if depth:
        raise refusal("a parenthesis is not closed")
    return (*done, tuple(elements))


def _item(found: re.Match[str]) -> _GbnfLiteral | _GbnfCharacterClass | _GbnfReference:
    match found.lastgroup:
        case "name":
            return _GbnfReference(found["name"])
        case "text":
            return _GbnfLiteral("".join(_characters(found["text"])))
        case "set":
            return _GbnfCharacterClass(_set(found["set"]))
        case _:
            return _GbnfCharacterClass(r"(.|\n)")


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


_LARGEST_TERMINAL: Final = 4000
"""Elements of a terminal with all that it refers to; larger ones compile slowly, unless they are rules."""


def lark_of(grammar: str) -> str:
    """The same grammar in Lark, from its rule `root`; raises InvalidValue where it is not GBNF."""
    rules = parse(grammar)
    if "root" not in rules:
        raise refusal("it has no rule `root`")
    return _Translation(rules).text()


class _Translation:
    def __init__(self, rules: _GbnfRules) -> None:
        self._rules = rules
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._is_closed: dict[str, bool] = {}
        """Rules that can be terminals, and whether nothing can go on where they end."""
        self._find_terminals()
        self._named: set[str] = set()
        self._unwritten: list[tuple[str, str, bool]] = []
        """What was referred to: its name in Lark, the rule, and whether it is wanted as a terminal."""
        self._runs: list[str] = []

    def text(self) -> str:
        lines = [f"start: {self._name('root', is_terminal='root' in self._is_closed)}"]
        while self._unwritten:
            name, rule, is_terminal = self._unwritten.pop()
            lines.append(f"{name}: {self._spelt(self._rules[rule], is_terminal=is_terminal)}")
        return "\n".join([*lines, *self._runs]) + "\n"

    def _find_terminals(self) -> None:
        references = {name: list(_references(rule)) for name, rule in self._rules.items()}
        waiting = {name: len(used) for name, used in references.items()}
        users: defaultdict[str, list[str]] = defaultdict(list)
        for name, used in references.items():
            for reference in used:
                users[reference].append(name)
        sizes: dict[str, int] = {}
        ready = [name for name, count in waiting.items() if count == 0]
        while ready:
            name = ready.pop()
            sizes[name] = _size(self._rules[name]) + sum(sizes[reference] for reference in references[name])
            if sizes[name] > _LARGEST_TERMINAL:
                continue
            self._is_closed[name] = all(map(self._ends_closed, self._rules[name]))
            for user in users[name]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready.append(user)

    def _ends_closed(self, sequence: _GbnfSequence) -> bool:
        return bool(sequence) and self._is_closed_element(sequence[-1])

    def _is_closed_element(self, element: _GbnfElement) -> bool:
        if element.times:
            return False
        match element.item:
            case _GbnfLiteral(text=text):
                return bool(text)
            case _GbnfCharacterClass():
                return True
            case _GbnfReference(name=name):
                return self._is_closed.get(name, False)
            case _GbnfGroup(alternatives=alternatives):
                return self._is_regular(element) and all(map(self._ends_closed, alternatives))
            case _:
                assert_never(element.item)

    def _is_regular(self, element: _GbnfElement) -> bool:
        """Whether an element could be part of a terminal."""
        return all(name in self._is_closed for name in _references(((element,),)))

    def _name(self, rule: str, *, is_terminal: bool) -> str:
        name = f"{'T' if is_terminal else 'r'}{self._numbers[rule]}"
        if name not in self._named:
            self._named.add(name)
            self._unwritten.append((name, rule, is_terminal))
        return name

    def _spelt(self, alternatives: Iterable[_GbnfSequence], *, is_terminal: bool) -> str:
        return " | ".join(self._sequence(sequence, is_terminal=is_terminal) for sequence in alternatives)

    def _sequence(self, sequence: _GbnfSequence, *, is_terminal: bool) -> str:
        if not sequence:
            return '""'
        if is_terminal:
            return " ".join(self._element(element, is_terminal=True) for element in sequence)
        parts: list[str] = []
        at = 0
        while at < len(sequence):
            end = self._run_end(sequence, at)
            if end - at > 1:
                parts.append(self._run(sequence[at:end]))
            else:
                parts.append(self._element(sequence[at], is_terminal=False))
            at = max(end, at + 1)
        return " ".join(parts)

    def _run_end(self, sequence: _GbnfSequence, start: int) -> int:
        """Where what begins here, and cannot go on, ends the same way with something between that can."""
        if not (self._is_regular(sequence[start]) and self._is_closed_element(sequence[start])):
            return start
        end = start + 1
        for at in range(start + 1, len(sequence)):
            if not self._is_regular(sequence[at]):
                break
            if self._is_closed_element(sequence[at]):
                end = at + 1
        return end

    def _run(self, sequence: _GbnfSequence) -> str:
        name = f"RUN{len(self._runs)}"
        self._runs.append(f"{name}: {self._sequence(sequence, is_terminal=True)}")
        return name

    def _element(self, element: _GbnfElement, *, is_terminal: bool) -> str:
        match element.item:
            case _GbnfLiteral(text=text):
                spelt = quoted(text)
            case _GbnfCharacterClass(pattern=pattern):
                spelt = f"/{pattern}/"
            case _GbnfReference(name=name):
                spelt = self._name(name, is_terminal=is_terminal or self._is_closed.get(name, False))
            case _GbnfGroup(alternatives=alternatives):
                spelt = f"({self._spelt(alternatives, is_terminal=is_terminal)})"
            case _:
                assert_never(element.item)
        return spelt + element.times


def _references(alternatives: Iterable[_GbnfSequence]) -> Iterable[str]:
    for sequence in alternatives:
        for element in sequence:
            match element.item:
                case _GbnfReference(name=name):
                    yield name
                case _GbnfGroup(alternatives=nested):
                    yield from _references(nested)
                case _:
                    pass


def _size(alternatives: Iterable[_GbnfSequence]) -> int:
    return sum(
        1 + (_size(element.item.alternatives) if isinstance(element.item, _GbnfGroup) else 0)
        for sequence in alternatives
        for element in sequence
    )
