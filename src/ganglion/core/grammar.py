"""The grammar of event streams, as a checker that every engine's output passes through in the tests."""

from typing import Literal, assert_never

from ganglion.core.events import Closed, Delta, Event, Failed, Finished, Opened, Progress, Scored, Started


class GrammarError(Exception):
    """An engine broke the law of the event stream."""


class Grammar:
    """Checks a stream event by event; `check_ended` says whether it may end here."""

    def __init__(self) -> None:
        self._state: Literal["waiting", "between", "open", "ended"] = "waiting"
        self._index = -1

    def feed(self, event: Event) -> None:
        """Accept the next event or raise GrammarError."""
        if self._state == "ended":
            raise GrammarError(f"{event} after the end of the stream")
        match event:
            case Progress():
                self._need(event, self._state in ("waiting", "between") and self._index < 0)
            case Started():
                self._need(event, self._state == "waiting")
                self._state = "between"
            case Scored():
                self._need(event, self._state == "between" and self._index < 0)
            case Opened(index=index):
                self._need(event, self._state == "between" and index == self._index + 1)
                self._state, self._index = "open", index
            case Delta(index=index):
                self._need(event, self._state == "open" and index == self._index)
            case Closed(index=index):
                self._need(event, self._state == "open" and index == self._index)
                self._state = "between"
            case Finished():
                self._need(event, self._state == "between")
                self._state = "ended"
            case Failed():
                self._state = "ended"
            case _:
                assert_never(event)

    def check_ended(self) -> None:
        """Raise unless the stream ended with Finished or Failed."""
        if self._state != "ended":
            raise GrammarError(f"the stream ended while {self._state}")

    def _need(self, event: Event, is_allowed: bool) -> None:
        if not is_allowed:
            raise GrammarError(f"{event} while {self._state} after block {self._index}")
