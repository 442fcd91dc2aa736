"""Takes the bare text for a custom tool out of `{"input": "text"}`.

Arguments of another shape are delivered as they stand.
"""

from typing import Literal

from ganglion.text.tools.cursor import ArgumentText, Cursor, NotACall, Reading
from ganglion.text.tools.json_text import decoded, string

INPUT = "input"


class CustomText:
    """Takes one call's arguments as they come and gives out the text for the tool."""

    __slots__ = ("_arrived", "_cursor", "_reading", "_state")

    def __init__(self) -> None:
        self._cursor = Cursor(())
        self._arrived: list[str] = []
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
                self._arrived.append(text)
            case "inside":
                pass
        self._cursor.feed(text)
        return self._step()

    def finish(self) -> str:
        """The arguments end here."""
        self._cursor.is_final = True
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
        given = "".join([act.text for _, act in self._cursor.acts if isinstance(act, ArgumentText)])
        self._cursor.acts.clear()
        return "".join(self._arrived) if is_verbatim else given

    def _unwrap(self) -> Reading[None]:
        cursor = self._cursor
        if (yield from cursor.skip_space()) != '"':
            yield from cursor.need("{")
            yield from cursor.skip_space()
            is_input = (yield from string(cursor)) == INPUT
            if (yield from cursor.skip_space()) != ":" or not is_input:
                raise NotACall
            cursor.advance()
            if (yield from cursor.skip_space()) != '"':
                raise NotACall
        self._state = "inside"
        yield from decoded(cursor)
