"""What a door needs of a dialect to stream an answer in it."""

from collections.abc import Sequence
from typing import Protocol

from ganglion.core.events import Event
from ganglion.wire.frame import Comment, Frame


class Projection(Protocol):
    """Events in, frames out; holds no clock and no socket."""

    @property
    def is_done(self) -> bool:
        """Whether the wire's last frame has been handed out."""
        ...

    def feed(self, event: Event, choice: int = 0) -> Sequence[Frame | Comment]:
        """The frames that this event of this choice adds."""
        ...

    def tick(self) -> Sequence[Frame | Comment]:
        """The frames that keep a silent stream alive."""
        ...
