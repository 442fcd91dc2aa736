"""Sessions that come in as bytes, and how much memory they may take while they do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ganglion.core.errors import InvalidValue, MissingParameter, Overloaded
from ganglion.wire.salience import salience_pb2 as pb

MAX_SAVED_BYTES: Final = 2 * 2**30
MAX_COMING_BYTES: Final = 4 * 2**30
"""Of all sessions that are being restored at one time."""


class Uploads:
    """Puts the bytes of a session together, within what all of them may take."""

    def __init__(self, *, each_bytes: int = MAX_SAVED_BYTES, all_bytes: int = MAX_COMING_BYTES) -> None:
        self._each_bytes = each_bytes
        self._all_bytes = all_bytes
        self._held_bytes = 0

    @asynccontextmanager
    async def taking(self, messages: AsyncIterator[pb.SessionBytes]) -> AsyncIterator[bytes]:
        """All bytes of one session; they count until they are let go of."""
        size_bytes = 0
        parts: list[bytes] = []
        try:
            async for message in messages:
                size_bytes += len(message.data)
                self._held_bytes += len(message.data)
                self._check(size_bytes)
                parts.append(message.data)
            if not size_bytes:
                raise MissingParameter("The parameter 'data' is required.", param="data")
            yield b"".join(parts)
        finally:
            self._held_bytes -= size_bytes

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._each_bytes:
            raise InvalidValue(
                f"Expected a saved session of at most {self._each_bytes} bytes, and more came.", param="data"
            )
        if self._held_bytes > self._all_bytes:
            raise Overloaded("Too many sessions are being restored.", hint="Retry in a moment.")
