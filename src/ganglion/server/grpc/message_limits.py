"""The limits on incoming messages: their size and number, checked before they are decoded.

A decoded message can take thirty times the memory of its bytes: an empty repeated message is two bytes and
an object. So the bytes are bounded by what a method can need, and the number of fields by what one can mean.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES
from ganglion.core.errors import DeadlineExceeded, InvalidValue, MissingParameter, Overloaded
from ganglion.core.fair_queue import FairQueue
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore
from ganglion.wire.salience import salience_pb2 as pb
from ganglion.wire.salience.service import SERVICE

MAX_SAVED_BYTES: Final = 2 * 2**30
MAX_UPLOADING_BYTES: Final = 4 * 2**30
"""Of all sessions that are being restored at one time."""


class SessionUploads:
    """Joins the messages of a saved session, within a limit on all uploads together."""

    def __init__(self, *, each_bytes: int = MAX_SAVED_BYTES, all_bytes: int = MAX_UPLOADING_BYTES) -> None:
        self._each_bytes = each_bytes
        self._all_bytes = all_bytes
        self._pending_bytes = 0

    @asynccontextmanager
    async def taking(self, messages: AsyncIterator[pb.SessionBytes]) -> AsyncIterator[bytes]:
        """All bytes of one session; they count until the block ends."""
        size_bytes = 0
        parts: list[bytes] = []
        try:
            async for message in messages:
                size_bytes += len(message.data)
                self._pending_bytes += len(message.data)
                self._check(size_bytes)
                parts.append(message.data)
            if not size_bytes:
                raise MissingParameter("The parameter 'data' is required.", param="data")
            yield b"".join(parts)
        finally:
            self._pending_bytes -= size_bytes

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._each_bytes:
            raise InvalidValue(
                f"Expected a saved session of at most {self._each_bytes} bytes, and more came.", param="data"
            )
        if self._pending_bytes > self._all_bytes:
            raise Overloaded("Too many sessions are being restored.", hint="Retry in a moment.")


# Law: gRPC buffers as much of a message as arrives, of every call that waits for one, and does not say how
# much that is. So few are read at a time. A client sends its message together with its call, and has it read
# in a moment; one that does not is moved to the slow ones, of which there may be a few, and is refused
# beyond.

QUICK_MESSAGES: Final = 8
QUICK_MESSAGES_EACH: Final = 4
"""Messages that are read at once, and of one tenant: with the slow ones, 48 MiB of all but images, and
240 MiB of those."""
SLOW_MESSAGES: Final = 4
SLOW_MESSAGES_EACH: Final = 3
QUICK_S: Final = 2.0
"""After which a message that has not come is a slow one."""
WAITING: Final = 8192
WAITING_EACH: Final = 4096
"""Calls whose message is not read yet, and of one tenant."""


class IncomingMessages:
    """Reads the messages of calls, few at a time."""

    def __init__(self) -> None:
        self.prompt = FairSemaphore(
            QUICK_MESSAGES,
            QUICK_MESSAGES_EACH,
            FairQueue(most=WAITING, most_each=WAITING_EACH, of="messages"),
        )
        self.slow = FairSemaphore(
            SLOW_MESSAGES, SLOW_MESSAGES_EACH, FairQueue(most=0, most_each=0, of="messages")
        )

    @asynccontextmanager
    async def reading(self, tenant: str, limit_s: float) -> AsyncIterator[None]:
        """Hold a permit while a message is read and decoded.

        Raises DeadlineExceeded where it takes too long, and Overloaded where it is slow and too many are.
        """
        turn = _MessageTurn(self.slow, self.prompt.take(tenant) or await self.prompt.enter(tenant))
        try:
            async with asyncio.timeout(limit_s) as limit:
                turn.watch(limit)
                yield
        except TimeoutError:
            if turn.is_refused:
                raise Overloaded("Too many messages are slow to arrive.", hint="Retry in a moment.") from None
            raise DeadlineExceeded("message", limit_s) from None
        finally:
            turn.close()


class _MessageTurn:
    """The permit of one message: first among the prompt ones, later among the slow."""

    def __init__(self, slow: FairSemaphore, turn: FairPermit) -> None:
        self._slow = slow
        self._turn: FairPermit | None = turn
        self._timer: asyncio.TimerHandle | None = None
        self.is_refused = False

    def watch(self, limit: asyncio.Timeout) -> None:
        """Move it to the slow ones after `QUICK_S`."""
        self._timer = asyncio.get_running_loop().call_later(QUICK_S, self._set_apart, limit)

    def close(self) -> None:
        """Release the permit."""
        if self._timer is not None:
            self._timer.cancel()
        if self._turn is not None:
            self._turn.close()

    def _set_apart(self, limit: asyncio.Timeout) -> None:
        assert self._turn is not None
        tenant = self._turn.tenant
        self._turn.close()
        self._turn = self._slow.take(tenant)
        if self._turn is None:
            self.is_refused = True
            limit.reschedule(0.0)


KIBIBYTE: Final = 2**10
SMALL_BYTES: Final = 16 * KIBIBYTE
"""Names, ids and numbers."""
CONTENT_BYTES: Final = 4 * 2**20 + 64 * KIBIBYTE
"""A million tokens, or four mebibytes of text or of a saved session, as gRPC has it by default, and what
stands around them."""
LARGEST_BYTES: Final = MAX_ATTACHMENT_BYTES + 64 * KIBIBYTE
"""An image, of the size that every wire takes. No message of any method is received beyond it."""
METHOD_BYTES: Final = {
    "OpenSession": 64 * KIBIBYTE,  # a few steers with their layers
    "Generate": CONTENT_BYTES,
    "AppendImage": LARGEST_BYTES,
    "RestoreSession": CONTENT_BYTES,
    "RenderMessages": CONTENT_BYTES,
    "Tokenize": CONTENT_BYTES,
    "Detokenize": CONTENT_BYTES,
}
"""By the method's name; those that are not here take small messages."""
MAX_FIELDS: Final = 8192
"""Of a message and those in it, each element of a repeated one counted; a list of numbers is one field."""

NESTED: Final = {
    method.name: frozenset(field.number for field in method.input_type.fields if field.message_type)
    for method in SERVICE.methods
}
"""The numbers of the fields that are messages themselves, by the method's name."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_size(method: str, data: bytes) -> None:
    """Raise InvalidValue for a message larger than its method can need; `method` is its whole path."""
    name = method.rpartition("/")[2]
    most = METHOD_BYTES.get(name, SMALL_BYTES)
    if len(data) > most:
        raise InvalidValue(f"Expected a message of at most {most} bytes, found {len(data)}.")
    if len(data) > SMALL_BYTES and not has_few_fields(data, NESTED.get(name, frozenset())):
        raise InvalidValue(f"The message has more than {MAX_FIELDS} fields.", hint="Send lists packed.")


def has_few_fields(data: bytes, nested: frozenset[int] = frozenset()) -> bool:
    """Whether a message has few fields, as far as its bytes can be followed; the decoder checks the rest.

    The fields of the messages that stand under the numbers `nested` count with its own.
    """
    at, size, inner_end = 0, len(data), 0
    for _ in range(MAX_FIELDS):
        if at >= size:
            return True
        is_inside = at < inner_end
        key, at = _varint(data, at)
        match key & 7:
            case kind if kind == _VARINT:
                _, at = _varint(data, at)
            case kind if kind == _BYTES:
                length, at = _varint(data, at)
                if not is_inside and key >> 3 in nested:
                    inner_end = at + length
                else:
                    at += length
            case kind if kind == _FIXED64:
                at += 8
            case kind if kind == _FIXED32:
                at += 4
            case _:
                pass  # a group begins or ends, and its fields count with the others
    return at >= size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at
