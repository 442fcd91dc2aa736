r"""The grammar of a whole answer, in llguidance's Lark: free reasoning, then the constrained text.

Law: whatever a client asked for travels as one Lark text, and what it contains is not looked at here. A
schema or pattern that nobody can compile is refused where it is compiled, in a process of its own.
"""

import re
from collections.abc import Sequence
from typing import Final, assert_never

from ganglion.core.errors import InvalidValue
from ganglion.core.request import (
    Choice,
    Constraint,
    Gbnf,
    JsonSchema,
    JsonValue,
    Lark,
    Regex,
    WithoutWords,
)
from ganglion.text.gbnf import lark_of
from ganglion.text.lark_grammar import ANY_TEXT, escaped, json_of, quoted
from ganglion.text.markers import HARMONY, REASONING_CHANNELS, MarkerFamily

MAX_BYTES: Final = 512 * 1024
"""Of one grammar. Larger ones are no longer written by people, and every byte is read several times."""

_GAP: Final = r"GAP: /[ \t\r\n]{1,8}/"


def compose(
    constraint: Constraint | None,
    *,
    body: str | None,
    family: MarkerFamily | None,
    is_open: bool,
    may_reason: bool,
) -> str | None:
    """The grammar of a whole answer, or None when nothing constrains it.

    `body` is a complete grammar of tool calls; with a constraint beside it the answer is one or the other.
    `is_open` says that the prompt ends inside reasoning, `may_reason` that the model may begin some itself.
    """
    sources = [body] if body is not None else []
    if constraint is not None:
        sources.append(_source(constraint))
    if not sources:
        return None
    is_call = body is not None
    source = _checked(_either(sources))
    if family is None:
        return source
    if family.name == HARMONY.name:
        lead, rules = _harmony(is_open=is_open, may_reason=may_reason, is_call=is_call)
    else:
        lead, rules = _thoughts(family, is_open=is_open, may_reason=may_reason)
    if not lead:
        return source
    return f"start: {lead} answer\n{rules}answer: %lark {{\n{source}\n}}\n"


def continuing(prefix: str, source: str | None) -> str:
    """The grammar of a text that begins with a prefix and goes on freely, or by another grammar."""
    rest = ANY_TEXT if source is None else f"%lark {{\n{source}\n}}"
    return _checked(f"start: {quoted(prefix)} rest\nrest: {rest}\n")


def _thoughts(family: MarkerFamily, *, is_open: bool, may_reason: bool) -> tuple[str, str]:
    """The reasoning before an answer, for families that only mark it."""
    until = f"{_GAP}\nthoughts[suffix={quoted(family.closing[0])}]: {ANY_TEXT}\n"
    if is_open:
        return "thoughts GAP?", until
    if not may_reason:
        return "", ""
    opening = quoted(family.opening[0])
    if family.is_channel:
        return "(opening thoughts GAP?)?", f"opening: {opening} {_channels()}\n{until}"
    return "(opening thoughts GAP?)?", f"opening: {opening}\n{until}"


def _harmony(*, is_open: bool, may_reason: bool, is_call: bool) -> tuple[str, str]:
    """The messages before an answer where each has a header, the last one too."""
    lead = ["rest"] if is_open else []
    if is_open or may_reason:
        lead.append("analysis*")
    if not is_call:
        lead.append("final")
    rules = (
        f'thoughts[suffix="<|end|>"]: {ANY_TEXT}\n'
        'rest: thoughts "<|start|>assistant"\n'
        'analysis: "<|channel|>analysis<|message|>" rest\n'
        'final: "<|channel|>final" (" "? "<|constrain|>json")? "<|message|>"\n'
    )
    return " ".join(lead), rules


def _channels() -> str:
    return rf"/[ \t]*({'|'.join(sorted(REASONING_CHANNELS))})[ \t\r]*\n/"


def _either(sources: Sequence[str]) -> str:
    if len(sources) == 1:
        return sources[0]
    names = [f"way{number}" for number in range(len(sources))]
    rules = (f"{name}: %lark {{\n{source}\n}}\n" for name, source in zip(names, sources, strict=True))
    return f"start: {' | '.join(names)}\n{''.join(rules)}"


def _source(constraint: Constraint) -> str:
    match constraint:
        case JsonSchema(schema=schema):
            return f"start: {_json(schema)}\n"
        case Regex(pattern=pattern):
            return f"start: {_regex(pattern)}\n"
        case Choice(options=options):
            if not options:
                raise InvalidValue("A choice needs at least one option.", param="response_format")
            return f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, options))}\n"
        case Lark(grammar=grammar):
            return grammar
        case Gbnf(grammar=grammar):
            return lark_of(_checked(grammar))
        case WithoutWords(words=words):
            return f"start: TEXT\nTEXT: {ANY_TEXT} & ~/(.|\\n)*({'|'.join(map(_literal, words))})(.|\\n)*/\n"
        case _:
            assert_never(constraint)


def _literal(word: str) -> str:
    """A text as part of a pattern."""
    return escaped(word).replace("\n", r"\n").replace("\r", r"\r")


def _json(schema: JsonValue) -> str:
    if not isinstance(schema, bool | dict):
        raise InvalidValue(
            f"A JSON schema is an object or a boolean, not {type(schema).__name__}.", param="response_format"
        )
    try:
        return json_of(schema)
    except RecursionError:
        raise InvalidValue("The schema is nested too deeply.", param="response_format") from None


def _regex(pattern: str) -> str:
    if not pattern:
        return '""'  # two slashes are a comment
    return f"/{re.sub(_UNSAFE, _safe, pattern)}/"


_SPELT: Final = {
    "/": r"\/",
    "\n": r"\n",
    "\r": r"\r",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\s": r"[ \t\n\r\f\v]",
    r"\S": r"[^ \t\n\r\f\v]",
}
"""What would end a pattern in Lark, and the classes, which are ASCII here: who writes `\\d` does not mean the
digits of every script, and a model that is held to it finds them."""
_UNSAFE: Final = re.compile(r"\\?[/\n\r]|\\.")


def _safe(found: re.Match[str]) -> str:
    return _SPELT.get(found[0]) or _SPELT.get(found[0].removeprefix("\\")[-1:], found[0])


def _checked(source: str) -> str:
    try:
        size_bytes = len(source.encode())
    except UnicodeEncodeError:
        raise InvalidValue("The grammar holds half a surrogate pair.", param="response_format") from None
    if size_bytes > MAX_BYTES:
        raise InvalidValue(
            f"The grammar has {size_bytes} bytes; {MAX_BYTES} are the most that are taken.",
            param="response_format",
        )
    return source
