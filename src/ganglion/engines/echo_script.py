"""How an echo answers: a value that tests set, or that a user's message may carry as a directive."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue

DIRECTIVE: Final = "!echo"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as an echo makes it."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Script:
    """What one answer does; the default repeats the user at once."""

    reply: str | None = None
    """Said instead of the user's own words."""
    reasoning: str = ""
    """Thought aloud before the reply."""
    calls: tuple[Call, ...] = ()
    """Tools called after the reply, in order."""
    delay_s: float = 0.0
    """Before every token after the first."""
    first_token_delay_s: float = 0.0
    fail_at: int | None = None
    """The answer fails instead of this token, counted from 0."""
    error: GanglionError = EngineFailed("The echo was told to fail.")
    crash_at: int | None = None
    """The engine dies instead of this token, under every request that runs."""
    cached_tokens: int = 0
    is_unbounded: bool = False
    """The reply repeats until something else ends it."""


def take_directives(text: str, script: Script) -> tuple[str, Script]:
    """Split the `!echo key=value …` lines from a message and apply them; raises InvalidValue."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        if words[:1] == [DIRECTIVE]:
            for word in words[1:]:
                script = _apply(word, script)
        else:
            kept.append(line)
    return "".join(kept), script


def _apply(word: str, script: Script) -> Script:
    key, _, value = word.partition("=")
    try:
        apply = _DIRECTIVES[key]
    except KeyError:
        raise InvalidValue(
            f"The echo directive {word!r} is unknown.",
            param="messages",
            hint=f"One of: {', '.join(_DIRECTIVES)}.",
        ) from None
    try:
        return apply(script, value)
    except ValueError:
        raise InvalidValue(f"The echo directive {word!r} needs a number.", param="messages") from None


def _call(value: str) -> Call:
    """`name` or `name:{"json":"arguments"}`, without spaces."""
    name, _, arguments = value.partition(":")
    return Call(name, arguments or "{}")


_DIRECTIVES: Final[dict[str, Callable[[Script, str], Script]]] = {
    "delay": lambda script, value: replace(script, delay_s=float(value)),
    "first_token_delay": lambda script, value: replace(script, first_token_delay_s=float(value)),
    "fail_at": lambda script, value: replace(script, fail_at=int(value)),
    "crash_at": lambda script, value: replace(script, crash_at=int(value)),
    "cached_tokens": lambda script, value: replace(script, cached_tokens=int(value)),
    "reply": lambda script, value: replace(script, reply=value),
    "reasoning": lambda script, value: replace(script, reasoning=value),
    "call": lambda script, value: replace(script, calls=(*script.calls, _call(value))),
    "unbounded": lambda script, _: replace(script, is_unbounded=True),
}
