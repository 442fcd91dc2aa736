"""Calls of tools that take text, from a server that knows only functions: the text out of `{"input": …}`."""

from collections.abc import Sequence

from ganglion.core.events import Closed, Delta, Event, Opened
from ganglion.text.tools.custom import CustomText


class FreeText:
    """Events of an answer in, the same out with the calls of some tools unwrapped."""

    def __init__(self, tools: frozenset[str]) -> None:
        self._tools = tools
        self._text: CustomText | None = None

    def feed(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events with bare text in these tools' calls."""
        if not self._tools:
            return events
        told: list[Event] = []
        for event in events:
            match event:
                case Opened(kind="tool_call", name=name) if name in self._tools:
                    self._text = CustomText()
                    told.append(event)
                case Delta(index=index, text=text, tokens=tokens) if self._text is not None:
                    bare = self._text.feed(text)
                    if bare or tokens:
                        told.append(Delta(index, bare, tokens))
                case Closed(index=index) if self._text is not None:
                    rest, self._text = self._text.finish(), None
                    told += [Delta(index, rest), event] if rest else [event]
                case _:
                    told.append(event)
        return told
