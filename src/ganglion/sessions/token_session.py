"""One session: tokens and images, and the rules by which they change. Pure.

Law: every token in it was appended by its client or sent to it. An image is in it whole or not at all. A
call that is refused changes nothing.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from ganglion.core.errors import ContextLengthExceeded, ImageBlockCut, InvalidValue, SessionDrift
from ganglion.core.request import PLACEHOLDER, ImageBlock

# Law: a list is the first `length` tokens of a trunk that only ever grows. Forks share the trunk; the first
# to grow from its end keeps it, and whoever must differ copies its own part then.

ITEM = "i"


class TokenList:
    """Four bytes a token, shared with its forks until they differ."""

    __slots__ = ("_length", "_trunk")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._trunk = array(ITEM, tokens)
        self._length = len(self._trunk)

    def __len__(self) -> int:
        return self._length

    def fork(self, length: int) -> "TokenList":
        """Another list with the first `length` tokens of this one."""
        assert 0 <= length <= self._length
        forked = TokenList()
        forked._trunk = self._trunk
        forked._length = length
        return forked

    def extend(self, tokens: Iterable[int]) -> None:
        """Grow; no fork sees it."""
        if self._length < len(self._trunk):
            self._trunk = self._trunk[: self._length]
        self._trunk.extend(tokens)
        self._length = len(self._trunk)

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` tokens."""
        assert 0 <= length <= self._length
        self._length = length

    def first(self, length: int) -> tuple[int, ...]:
        """The first `length` tokens."""
        return tuple(self._trunk[: min(length, self._length)])

    def part(self, start: int, end: int) -> tuple[int, ...]:
        """The tokens of a half-open range that lies inside."""
        assert 0 <= start <= end <= self._length
        return tuple(self._trunk[start:end])

    def tobytes(self) -> bytes:
        """All tokens, four bytes each in the machine's order."""
        return self._trunk[: self._length].tobytes()


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change that was checked and not applied yet: keep the first `keep` tokens, then append."""

    keep: int
    append: tuple[int, ...]

    @property
    def length(self) -> int:
        """The session's length once it is applied."""
        return self.keep + len(self.append)


class TokenSession:
    """The tokens and images of one session."""

    __slots__ = ("_tokens", "images")

    def __init__(self, tokens: TokenList | None = None, images: Iterable[ImageBlock] = ()) -> None:
        self._tokens = TokenList() if tokens is None else tokens
        self.images = tuple(images)

    @property
    def length(self) -> int:
        """How many positions it has, those of images included."""
        return len(self._tokens)

    def propose(
        self, append: tuple[int, ...], *, offset: int, is_truncating: bool, context_length: int, room: int
    ) -> ProposedChange:
        """Check a change that must leave room for `room` more tokens; raises what is wrong with it."""
        if offset > self.length or (offset < self.length and not is_truncating):
            raise SessionDrift(offset, self.length)
        self._check_cut(offset)
        change = ProposedChange(offset, append)
        if change.length + room > context_length:
            raise context_overflow(change.length, context_length, param="append_tokens")
        if change.length == 0 and room:
            raise InvalidValue(
                "The session is empty: there is nothing to generate from.",
                param="append_tokens",
                hint="Append at least one token.",
            )
        return change

    def after(self, change: ProposedChange) -> tuple[int, ...]:
        """All tokens as they would be."""
        return (*self._tokens.first(change.keep), *change.append)

    def images_before(self, length: int) -> tuple[ImageBlock, ...]:
        """The images among the first `length` positions."""
        return tuple(image for image in self.images if image.start + image.count <= length)

    def apply(self, change: ProposedChange) -> None:
        """Apply a change that was proposed to the session as it is."""
        self.truncate(change.keep)
        self._tokens.extend(change.append)

    def commit(self, token: int) -> None:
        """Add a token that was generated."""
        self._tokens.extend((token,))

    def append_image(self, image: ImageBlock) -> None:
        """Append an image."""
        assert image.start == self.length
        self._tokens.extend((PLACEHOLDER,) * image.count)
        self.images = (*self.images, image)

    def truncate(self, length: int) -> None:
        """Drop everything from a position on; raises where there is no such cut."""
        if length > self.length:
            raise SessionDrift(length, self.length, param="length")
        self._check_cut(length, param="length")
        self._tokens.truncate(length)
        self.images = self.images_before(length)

    def fork(self, at: int) -> "TokenSession":
        """Another session with the first `at` positions of this one; costs nothing."""
        if at > self.length:
            raise SessionDrift(at, self.length, param="at")
        self._check_cut(at, param="at")
        return TokenSession(self._tokens.fork(at), self.images_before(at))

    def tokens(self) -> tuple[int, ...]:
        """All tokens, placeholders where images are."""
        return self._tokens.first(self.length)

    def part(self, offset: int, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens from a position on; raises where it lies beyond the end."""
        if offset > self.length:
            raise SessionDrift(offset, self.length)
        return self._tokens.part(offset, min(offset + limit, self.length))

    def tobytes(self) -> bytes:
        """All tokens, four bytes each."""
        return self._tokens.tobytes()

    def _check_cut(self, at: int, *, param: str = "offset") -> None:
        for image in self.images:
            if image.start < at < image.start + image.count:
                raise ImageBlockCut(
                    f"Position {at} lies inside the image at {image.start} to {image.start + image.count}.",
                    param=param,
                    hint=f"Cut at {image.start}, or at {image.start + image.count}.",
                    extras={"session_length": self.length},
                )


def context_overflow(length: int, context_length: int, *, param: str) -> ContextLengthExceeded:
    """The error for a session that does not fit its model's context."""
    return ContextLengthExceeded(
        length, context_length, param=param, advice="Append less, or truncate the session first."
    )
