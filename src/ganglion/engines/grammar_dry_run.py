"""Tries grammars in a child process before a worker compiles them for its vocabulary."""

import json
import re
import signal
from contextlib import suppress
from typing import Final

from ganglion.core.errors import EngineFailed, InvalidValue
from ganglion.engines.child import Child, ChildDied, ChildLimits, ChildNotStarted, spawn

# Law: a grammar may take the processor time, the waiting and the memory of `_LIMITS`, and one that takes more
# costs its own request an error and the sequences that run nothing. llguidance bounds most of what it does
# and not all: some schemas of a few kilobytes compile for minutes, and a native call cannot be interrupted.

_CHILD: Final = "ganglion.engines.grammar_dry_run_child"
_LIMITS: Final = ChildLimits(
    wall_s=1.4,  # more than the processor time, since the child gives way to sequences that run
    cpu_s=0.7,
    memory_bytes=512 * 2**20,
    max_frame_bytes=2**20,
    niceness=10,  # whoever compiles waits anyway; the sequences that run beside it should not
)

TOO_LONG: Final = "it takes too long to compile"
_TOO_LARGE: Final = "it takes too much memory to compile"


class GrammarDryRun:
    """One child, started when it is first needed and after each that had to be killed. For one thread."""

    def __init__(self, vocabulary_size: int, end_names: list[str]) -> None:
        self._arguments = (str(vocabulary_size), *end_names)
        self._child: Child | None = None

    def error_in(self, grammar: str) -> str | None:
        """What is wrong with a grammar, in words for its author, or None."""
        try:
            child = self._child = self._child or spawn(_CHILD, *self._arguments, limits=_LIMITS)
            error = child.ask(grammar.encode())
        except ChildNotStarted:
            self.close()
            raise EngineFailed("The process that tries grammars did not start.") from None
        except TimeoutError:
            self._start_anew()
            return TOO_LONG
        except ChildDied as death:
            self._start_anew()
            return TOO_LONG if death.code == -signal.SIGPROF else _TOO_LARGE
        return error.decode("utf-8", "replace") or None

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _start_anew(self) -> None:
        """Begin the next child now, so that the next grammar finds it ready."""
        self.close()
        with suppress(ChildNotStarted):  # whoever comes next tries again
            self._child = spawn(_CHILD, *self._arguments, limits=_LIMITS)


_LONGEST_REASON: Final = 400
_EXCERPT: Final = re.compile(r"\n\s+\d+ \|.*", re.DOTALL)
"""The lines of a grammar around an error: here they are of a grammar that the client did not write."""


def grammar_refusal(reason: str) -> InvalidValue:
    """The error of a grammar that cannot be compiled."""
    short = _EXCERPT.sub("", reason).strip()[:_LONGEST_REASON]
    return InvalidValue(f"The output format cannot be compiled: {short}")


def names_token(grammar: str, token: str) -> bool:
    """Whether a grammar holds the name of a control token."""
    return token in grammar or json.dumps(token)[1:-1] in grammar
