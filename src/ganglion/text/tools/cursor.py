"""A cursor over the text of calls as it arrives, and the findings of the reader that moves it.

A reader is a generator over a cursor: it consumes characters, waits by yielding where they end, and says what
it found. Law: what a reader finds depends on the characters alone, never on where the waits were; only how
an argument's text is cut into `ArgumentText` does.

A reader raises `NotACall` where the text is no call. Until it said `CallNamed` nothing has left, so the block
goes back to the text; after that a call is what it is.
"""

import re
from collections.abc import Container, Generator
from dataclasses import dataclass
from typing import TypeVar

from ganglion.text.marker_scanner import undecided_suffix

_SPACE = re.compile(r"[ \t\r\n]*")

_T = TypeVar("_T")
Reading = Generator[None, None, _T]


class NotACall(Exception):
    """The text here is not what this reader reads."""


@dataclass(frozen=True, slots=True)
class CallNamed:
    """A call begins, to a tool that there is."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """More of the call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is complete."""


_CallFinding = CallNamed | ArgumentText | CallEnded


class Cursor:
    """The text that is not consumed yet; `acts` are the reader's findings, each with its offset."""

    __slots__ = (
        "_kept",
        "_names",
        "_passed",
        "_position",
        "_text",
        "acts",
        "is_calling",
        "is_final",
        "offset",
    )

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._text = ""
        self._position = 0
        self._passed: list[str] | None = None
        """Consumed text on its way out as arguments, while it is passed through."""
        self._kept: list[str] | None = None
        """Consumed text that the reader wants back."""
        self.offset = 0
        """How many characters were consumed since the cursor began."""
        self.is_final = False
        self.is_calling = False
        self.acts: list[tuple[int, _CallFinding]] = []

    def feed(self, text: str) -> None:
        """Add text; what is left of the old is short, so that all of it is linear."""
        self._text = self._text[self._position :] + text
        self._position = 0

    def wait(self) -> Reading[None]:
        """Wait for more text, having let go of the arguments so far."""
        self._release()
        yield

    def peek(self) -> Reading[str]:
        """The next character, nothing at the end."""
        while self._position >= len(self._text):
            if self.is_final:
                return ""
            yield from self.wait()
        return self._text[self._position]

    def advance(self, count: int = 1) -> None:
        """Consume characters that were peeked at."""
        taken = self._text[self._position : self._position + count]
        if self._passed is not None:
            self._passed.append(taken)
        if self._kept is not None:
            self._kept.append(taken)
        self._position += count
        self.offset += count

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Consume all characters of a class; the pattern is `[…]*`."""
        found: list[str] = []
        while True:
            match = pattern.match(self._text, self._position)
            if match is not None and match.end() > self._position:
                found.append(match[0])
                self.advance(len(match[0]))
            if self._position < len(self._text) or self.is_final:
                return "".join(found)
            yield from self.wait()

    def at_once(self, pattern: re.Pattern[str]) -> str:
        """Consume those characters of a class that have come."""
        match = pattern.match(self._text, self._position)
        taken = "" if match is None else match[0]
        self.advance(len(taken))
        return taken

    def skip_space(self) -> Reading[str]:
        """Consume whitespace and return the character after it, nothing at the end."""
        yield from self.run(_SPACE)
        return (yield from self.peek())

    def take(self, word: str) -> Reading[bool]:
        """Consume the word if it comes next; decided with the first character that says no."""
        while True:
            come = self._text[self._position : self._position + len(word)]
            if come == word:
                self.advance(len(word))
                return True
            if self.is_final or not word.startswith(come):
                return False
            yield from self.wait()

    def need(self, word: str) -> Reading[None]:
        """Consume the word, or it is no call."""
        if not (yield from self.take(word)):
            raise NotACall

    def until(self, *words: str) -> Reading[str]:
        """Consume text up to the first of the words, which stays, or up to the end."""
        pattern = re.compile("|".join(map(re.escape, words))) if words else None
        found: list[str] = []
        while True:
            match = None if pattern is None else pattern.search(self._text, self._position)
            rest = self._text[self._position :]
            if match is not None:
                count = match.start() - self._position
            else:
                count = len(rest) - (0 if self.is_final else undecided_suffix(rest, words))
            if count:
                found.append(rest[:count])
                self.advance(count)
            if match is not None or self.is_final:
                return "".join(found)
            yield from self.wait()

    def check(self, name: str) -> None:
        """Raise NotACall unless there is such a tool."""
        if name not in self._names:
            raise NotACall

    def call(self, name: str) -> None:
        """Begin a call, if there is such a tool."""
        self.check(name)
        self.is_calling = True
        self.acts.append((self.offset, CallNamed(name)))

    def emit_arguments(self, text: str) -> None:
        """Say more of the call's arguments."""
        if text:
            self.acts.append((self.offset, ArgumentText(text)))

    def end(self) -> None:
        """End the call."""
        self.is_calling = False
        self.acts.append((self.offset, CallEnded()))

    def forwarding(self, reading: Reading[None]) -> Reading[None]:
        """Let what is consumed meanwhile out as arguments, as it comes."""
        self._passed = []
        try:
            yield from reading
        finally:
            self._release()
            self._passed = None

    def capturing(self, reading: Reading[None]) -> Reading[str]:
        """Return what is consumed meanwhile."""
        kept: list[str] = []
        self._kept = kept
        try:
            yield from reading
        finally:
            self._kept = None
        return "".join(kept)

    def _release(self) -> None:
        if self._passed:
            self.emit_arguments("".join(self._passed))
            self._passed.clear()
