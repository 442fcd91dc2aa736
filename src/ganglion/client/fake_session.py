"""One session as the fake node holds it, with the wire's own refusals."""

from dataclasses import dataclass, field
from typing import Final

from ganglion.core.errors import Extra, ImageBlockCut, SessionBusy, SessionDrift
from ganglion.wire.salience import salience_pb2 as pb

TTL_S: Final = 600.0


@dataclass(slots=True)
class FakeSession:
    """One session as the fake holds it."""

    model: str
    owner: str | None
    tokens: list[int] = field(default_factory=list)
    images: list[tuple[int, int]] = field(default_factory=list)
    """Where each begins, and how many positions it takes."""
    steering: tuple[pb.Steer, ...] = ()
    ttl_s: float = TTL_S
    is_busy: bool = False
    is_suspended: bool = False

    def cut(self, length: int) -> None:
        """Forget everything from a position on; raises ImageBlockCut."""
        if any(start < length < start + count for start, count in self.images):
            raise ImageBlockCut(f"Position {length} lies inside an image.", extras=self._length())
        del self.tokens[length:]
        self.images = [(start, count) for start, count in self.images if start < length]

    def move(self, offset: int, is_truncating: bool) -> None:
        """Be where a call expects it to be; raises what the wire says."""
        if self.is_busy:
            raise SessionBusy("Another call changes the session just now.", extras=self._length())
        if offset > len(self.tokens) or (offset < len(self.tokens) and not is_truncating):
            raise SessionDrift(offset, len(self.tokens))
        self.cut(offset)

    def _length(self) -> dict[str, Extra]:
        return {"session_length": len(self.tokens)}
