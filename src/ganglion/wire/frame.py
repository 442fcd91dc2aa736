"""Frames of a stream, and the bytes that each becomes as a server-sent event.

Law: LF only, one blank line after each frame, and `data` holds no line break (JSON escapes them).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ganglion.core.events import Event


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a wire; `event` is its name on wires that name them."""

    data: bytes
    event: str | None = None


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that clients skip: it keeps proxies from closing a silent stream."""

    text: str = "keep-alive"


def sse(frame: Frame | Comment) -> bytes:
    """The frame as it goes over the socket."""
    if isinstance(frame, Comment):
        return b": %b\n\n" % frame.text.encode()
    if frame.event is None:
        return b"data: %b\n\n" % frame.data
    return b"event: %b\ndata: %b\n\n" % (frame.event.encode(), frame.data)


@dataclass(frozen=True, slots=True)
class Framing:
    """The encoding of a wire's frames."""

    content_type: bytes
    encode: Callable[[Frame | Comment], bytes]


SERVER_SENT_EVENTS = Framing(b"text/event-stream; charset=utf-8", sse)


class Projection(Protocol):
    """Events in, frames out; holds no clock and no socket."""

    @property
    def is_done(self) -> bool:
        """Whether the wire's last frame has been handed out."""

    def feed(self, event: Event, choice: int = 0) -> Sequence[Frame | Comment]:
        """The frames that this event of this choice adds."""

    def tick(self) -> Sequence[Frame | Comment]:
        """The frames that keep a silent stream alive."""
