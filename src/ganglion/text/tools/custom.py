"""What a custom tool is given: the bare text out of `{"input": "text"}`.

Arguments of another shape are delivered as they stand.
"""

from typing import Literal

from ganglion.text.tools.cursor import ArgumentText, Cursor, NotACall, Reading
from ganglion.text.tools.json_text import decoded, string

INPUT = "input"


class CustomText:
    """Takes one call's arguments as they come and gives out the text for the tool."""

    __slots__ = ("_come", "_reading", "_state", "_tape")

    def __init__(self) -> None:
        self._tape = Cursor(())
        self._come: list[str] = []
        """What came before the shape was known."""
        self._state: Literal["before", "inside", "behind", "verbatim"] = "before"
        self._reading = self._unwrap()

    def feed(self, text: str) -> str:
        """Take more of the arguments; returns what the tool is given of it."""
        match self._state:
            case "verbatim":
                return text
            case "behind":
                return ""
            case "before":
                self._come.append(text)
            case "inside":
                pass
        self._tape.feed(text)
        return self._step()

    def finish(self) -> str:
        """The arguments end here."""
        self._tape.is_final = True
        return self._step() if self._state in ("before", "inside") else ""

    def _step(self) -> str:
        is_verbatim = False
        try:
            next(self._reading)
        except StopIteration:
            self._state = "behind"
        except NotACall:
            is_verbatim = self._state == "before"
            self._state = "verbatim"
        given = "".join([act.text for _, act in self._tape.acts if isinstance(act, ArgumentText)])
        self._tape.acts.clear()
        return "".join(self._come) if is_verbatim else given

    def _unwrap(self) -> Reading[None]:
        tape = self._tape
        if (yield from tape.skip_space()) != '"':
            yield from tape.need("{")
            yield from tape.skip_space()
            is_input = (yield from string(tape)) == INPUT
            if (yield from tape.skip_space()) != ":" or not is_input:
                raise NotACall
            tape.advance()
            if (yield from tape.skip_space()) != '"':
                raise NotACall
        self._state = "inside"
        yield from decoded(tape)
