"""The tokens that the client has committed to a session, and the chunks of a list that are not in it yet.

Law: the node holds exactly `tokens[:confirmed_length]`, and perhaps something else after it. Where a call was
cancelled or failed, it is unknown how far it came; the next one then rewrites history from `confirmed_length`
on, and sends again what belongs there. So no extra call is made, and the session will hold what `tokens`
says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import index
from typing import Final

from ganglion.client.errors import Divergence, SessionDivergence
from ganglion.client.values import Chunk, Image
from ganglion.core.errors import InvalidValue
from ganglion.core.request import PLACEHOLDER

_MAX_TOKEN_ID: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _SentChunk:
    """A chunk in the session: where it starts, and over how many positions."""

    start: int
    count: int
    key: str

    @property
    def end(self) -> int:
        """The position after it."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """One session's content; a value: every change makes a new one."""

    tokens: tuple[int, ...] = ()
    """PLACEHOLDER at the positions of images, and below `unknown_prefix`."""
    confirmed_length: int = 0
    is_diverged: bool = False
    """The node may hold something else after `confirmed_length`."""
    unknown_prefix: int = 0
    """So many leading tokens are unknown: they are from before the session was restored or attached to."""
    sent: tuple[_SentChunk, ...] = ()
    """Text and images, whose length in tokens cannot be known otherwise."""

    @classmethod
    def of_unknown(cls, length: int) -> "CommittedTokens":
        """A session with tokens that are unknown here."""
        return cls(tokens=(PLACEHOLDER,) * length, confirmed_length=length, unknown_prefix=length)

    @property
    def length(self) -> int:
        """How many tokens the session holds."""
        return len(self.tokens)

    @property
    def unsent(self) -> tuple[int, ...]:
        """The tokens that the next call must send before new ones."""
        return self.tokens[self.confirmed_length :]

    def with_tokens(self, tokens: Sequence[int]) -> "CommittedTokens":
        """With more tokens, which are not confirmed."""
        return replace(self, tokens=(*self.tokens, *tokens), sent=self._sent_up_to(self.length))

    def with_chunk(self, chunk: str | Image, start: int, count: int) -> "CommittedTokens":
        """With the position of a chunk; its tokens are added apart."""
        return replace(self, sent=(*self.sent, _SentChunk(start, count, _chunk_key(chunk))))

    def confirmed(self) -> "CommittedTokens":
        """The same, with the node holding all of it and nothing else."""
        return replace(self, confirmed_length=self.length, is_diverged=False)

    def diverged_after(self, length: int) -> "CommittedTokens":
        """The same, with the node's tokens after a position unknown."""
        return replace(self, confirmed_length=min(length, self.confirmed_length), is_diverged=True)

    def revealed(self, tokens: Sequence[int]) -> "CommittedTokens":
        """The same, with the unknown leading tokens filled in."""
        return replace(self, tokens=(*tokens, *self.tokens[self.unknown_prefix :]), unknown_prefix=0)

    def cut(self, length: int) -> "CommittedTokens":
        """Only the first tokens; raises InvalidValue where there are fewer."""
        if not 0 <= length <= self.length:
            raise InvalidValue(f"Expected a length from 0 to {self.length}, found {length}.", param="length")
        return replace(
            self,
            tokens=self.tokens[:length],
            confirmed_length=min(self.confirmed_length, length),
            unknown_prefix=min(self.unknown_prefix, length),
            sent=tuple(each for each in self.sent if each.start < length),
        )

    def rest(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """The chunks that are not in the session yet; raises SessionDivergence where the others differ."""
        known = {(each.start, each.key): each.count for each in self.sent}
        position = 0
        for number, chunk in enumerate(chunks):
            if position == self.length:
                return chunks[number:]
            count = known.get((position, _chunk_key(chunk))) if isinstance(chunk, str | Image) else len(chunk)
            if count is None:
                raise self._divergence("unknown", number, position)
            if position + count > self.length:
                raise self._divergence("straddles", number, position)
            if not isinstance(chunk, str | Image) and not self._matches(chunk, position):
                raise self._divergence("differs", number, position)
            position += count
        if position < self.length:
            raise self._divergence("short", len(chunks), position)
        return ()

    def _matches(self, tokens: Sequence[int], position: int) -> bool:
        first = max(position, self.unknown_prefix)
        return tuple(tokens[first - position :]) == self.tokens[first : position + len(tokens)]

    def _sent_up_to(self, length: int) -> tuple[_SentChunk, ...]:
        # A chunk that was cut in two is no longer there once something else follows its first part.
        if not self.sent or all(each.end <= length for each in self.sent):
            return self.sent
        return tuple(each for each in self.sent if each.end <= length)

    def _divergence(self, reason: Divergence, chunk: int, position: int) -> SessionDivergence:
        where = f"at {position} of {self.length} committed tokens"
        reasons = {
            "unknown": f"Chunk {chunk} begins {where} and was never sent",
            "straddles": f"Chunk {chunk} begins {where} and goes beyond them",
            "differs": f"Chunk {chunk} differs from what is {where}",
            "short": f"The chunks end {where}",
        }
        return SessionDivergence(
            reason, f"{reasons[reason]}.", chunk=chunk, position=position, committed=self.length
        )


def _chunk_key(chunk: str | Image) -> str:
    """A key that identifies a text or image."""
    if isinstance(chunk, str):
        return f"text {sha256(chunk.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return f"{chunk.mime} {sha256(chunk.data).hexdigest()}"


def checked_chunks(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """Chunks as `run()` takes them; raises InvalidValue."""
    if isinstance(chunks, str | bytes):
        raise InvalidValue("Expected a list of chunks, found one text.", param="chunks", hint="run([text])")
    return tuple(chunk if isinstance(chunk, str | Image) else _ids(chunk) for chunk in chunks)


def checked_tokens(tokens: Sequence[int]) -> tuple[int, ...]:
    """Token ids that can be sent; raises InvalidValue."""
    ids = _ids(tokens)
    for token in ids:
        if not 0 <= token <= _MAX_TOKEN_ID:
            what = (
                "the placeholder of an image or of a restored token" if token == PLACEHOLDER else str(token)
            )
            raise InvalidValue(f"Expected token ids, found {what}.", param="tokens")
    return ids


def _ids(tokens: Sequence[int]) -> tuple[int, ...]:
    if isinstance(tokens, bytes | bytearray | memoryview):
        raise InvalidValue(
            "Expected text, token ids or an Image, found bytes.",
            param="tokens",
            hint="Image.of() takes the bytes of an image, its path, or a data URI.",
        )
    try:
        return tuple(index(token) for token in tokens)
    except TypeError:
        raise InvalidValue(
            f"Expected text, token ids or an Image, found {type(tokens).__name__}.", param="tokens"
        ) from None
