r"""llama.cpp's grammars in llguidance's Lark.

GBNF reads character by character; llguidance first cuts text into the longest terminals it can, and of these
one like `[ \n]*` before a rule that wants a newline would take the newline every time. So a grammar without
recursion becomes one terminal, which means exactly the same. In any other, a terminal is only what ends with
something that cannot go on, as a quoted string does, and everything else is taken character by character.

Law: what the translation accepts, the grammar accepts. Where two terminals begin alike it may accept less.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, assert_never

from ganglion.text.gbnf_syntax import (
    Element,
    Group,
    Literal,
    OneOf,
    Reference,
    Rules,
    Sequence,
    parse,
    refusal,
)
from ganglion.text.lark import quoted

LARGEST_TERMINAL: Final = 4000
"""Elements of a terminal with all that it refers to; larger ones compile slowly, unless they are rules."""


def lark_of(grammar: str) -> str:
    """The same grammar in Lark, from its rule `root`; raises InvalidValue where it is not GBNF."""
    rules = parse(grammar)
    if "root" not in rules:
        raise refusal("it has no rule `root`")
    return _Translation(rules).text()


class _Translation:
    def __init__(self, rules: Rules) -> None:
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
            if sizes[name] > LARGEST_TERMINAL:
                continue
            self._is_closed[name] = all(map(self._ends_closed, self._rules[name]))
            for user in users[name]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready.append(user)

    def _ends_closed(self, sequence: Sequence) -> bool:
        return bool(sequence) and self._is_closed_element(sequence[-1])

    def _is_closed_element(self, element: Element) -> bool:
        if element.times:
            return False
        match element.item:
            case Literal(text=text):
                return bool(text)
            case OneOf():
                return True
            case Reference(name=name):
                return self._is_closed.get(name, False)
            case Group(alternatives=alternatives):
                return self._is_regular(element) and all(map(self._ends_closed, alternatives))
            case _:
                assert_never(element.item)

    def _is_regular(self, element: Element) -> bool:
        """Whether an element could be part of a terminal."""
        return all(name in self._is_closed for name in _references(((element,),)))

    def _name(self, rule: str, *, is_terminal: bool) -> str:
        name = f"{'T' if is_terminal else 'r'}{self._numbers[rule]}"
        if name not in self._named:
            self._named.add(name)
            self._unwritten.append((name, rule, is_terminal))
        return name

    def _spelt(self, alternatives: Iterable[Sequence], *, is_terminal: bool) -> str:
        return " | ".join(self._sequence(sequence, is_terminal=is_terminal) for sequence in alternatives)

    def _sequence(self, sequence: Sequence, *, is_terminal: bool) -> str:
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

    def _run_end(self, sequence: Sequence, start: int) -> int:
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

    def _run(self, sequence: Sequence) -> str:
        name = f"RUN{len(self._runs)}"
        self._runs.append(f"{name}: {self._sequence(sequence, is_terminal=True)}")
        return name

    def _element(self, element: Element, *, is_terminal: bool) -> str:
        match element.item:
            case Literal(text=text):
                spelt = quoted(text)
            case OneOf(pattern=pattern):
                spelt = f"/{pattern}/"
            case Reference(name=name):
                spelt = self._name(name, is_terminal=is_terminal or self._is_closed.get(name, False))
            case Group(alternatives=alternatives):
                spelt = f"({self._spelt(alternatives, is_terminal=is_terminal)})"
            case _:
                assert_never(element.item)
        return spelt + element.times


def _references(alternatives: Iterable[Sequence]) -> Iterable[str]:
    for sequence in alternatives:
        for element in sequence:
            match element.item:
                case Reference(name=name):
                    yield name
                case Group(alternatives=nested):
                    yield from _references(nested)
                case _:
                    pass


def _size(alternatives: Iterable[Sequence]) -> int:
    return sum(
        1 + (_size(element.item.alternatives) if isinstance(element.item, Group) else 0)
        for sequence in alternatives
        for element in sequence
    )
