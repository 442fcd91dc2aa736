"""What a streaming wire is made of: frames, and the bytes each becomes as a server-sent event.

Law: LF only, one blank line after each frame, and `data` holds no line break (JSON escapes them).
"""

from dataclasses import dataclass


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
