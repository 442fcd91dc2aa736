"""Decodes pictures in child processes that can be killed.

Law: a file may have the bytes that every wire takes, and a picture the pixels and sides that `decoder_child`
allows before it allocates any. Decoding may take `BUDGET_S` of processor time and `MEMORY_BYTES`. One
that takes more, or is no whole picture, is the request's fault; that the machine is busy or has no room for a
child is ours. Either costs its own request an error and the others at most the wait for a child.

Files come from strangers, and decoders are written in C: only a process boundary keeps what a file does to
its decoder from the server. The child can open neither files nor sockets.
"""

import signal
from typing import Final

import msgspec

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, media_type_of
from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue, Overloaded
from ganglion.engines.child import ChildDied, ChildLimits
from ganglion.engines.child_pool import ChildPool
from ganglion.engines.images.decoder_frames import DecodedImage, DecodeRefusal, DecodeReply, DecodeRequest

_MEBIBYTE = 1024 * 1024
MAX_SIDE: Final = 4096
"""A larger picture is shrunk so that its longer side is this: no projector looks closer."""
BUDGET_S: Final = 6.0
"""Processor time: four times what the largest good file takes on a slow core."""
WALL_S: Final = 60.0
"""How long a picture waits for that."""
MEMORY_BYTES: Final = 1024 * _MEBIBYTE
"""Six times the largest picture at four bytes a pixel, which is what an animated WebP takes."""
CHILDREN: Final = 2
"""At most; the second is started when somebody has waited."""
_CHILD: Final = "ganglion.engines.images.decoder_child"
_FRAME_SLACK_BYTES: Final = 4096
_WAITING: Final = 256 * _MEBIBYTE
_WAITING_EACH: Final = 128 * _MEBIBYTE
"""Bytes of files that wait to be decoded, and of one tenant."""

KINDS: Final = "PNG, JPEG, WebP, GIF and BMP"


class ImageDecoder:
    """Decodes pictures, as many at once as there are children."""

    def __init__(
        self,
        budget_s: float = BUDGET_S,
        memory_bytes: int = MEMORY_BYTES,
        *,
        max_side: int = MAX_SIDE,
        wall_s: float = WALL_S,
        children: int = CHILDREN,
    ) -> None:
        self._limits = ChildLimits(
            wall_s,
            cpu_s=budget_s,
            memory_bytes=memory_bytes,
            max_frame_bytes=3 * max_side * max_side + _FRAME_SLACK_BYTES,
        )
        self._pool = ChildPool(
            _CHILD,
            str(max_side),
            limits=self._limits,
            most=children,
            most_waiting=_WAITING,
            most_waiting_each=_WAITING_EACH,
            work="decodes images",
            items="images to be decoded",
        )

    async def open(self) -> None:
        """Start the first child now, so that the first picture does not wait for it."""
        await self._pool.open()

    async def close(self) -> None:
        """End the children; whatever is decoded or waits ends with ShuttingDown."""
        await self._pool.close()

    async def decode(self, data: bytes, *, tenant: str = "") -> DecodedImage:
        """Decode a file; raises InvalidValue for what is no picture, is not whole, or is too large.

        Raises Overloaded where too many wait, or the machine does not get to it. Without `open`, the first
        call starts the child. Cancelling a call that has begun kills the child that decodes.
        """
        kind = image_kind(data)
        try:
            reply = await self._pool.ask(
                tenant, len(data), lambda: msgspec.msgpack.encode(DecodeRequest(kind, data))
            )
        except TimeoutError:
            raise Overloaded(
                f"The machine is too busy: in {self._limits.wall_s:g} s the image could not be decoded.",
                hint="Retry in a moment.",
            ) from None
        except ChildDied as death:
            raise self._ended(death.code) from None
        return _image_of(reply)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The children that there are."""
        return self._pool.process_ids

    def _ended(self, code: int | None) -> GanglionError:
        if code == -signal.SIGPROF:
            return InvalidValue(
                f"The image takes more than {self._limits.cpu_s:g} s of processor time to decode.",
                hint="Send it smaller, or as a plain PNG or JPEG.",
            )
        if code == -signal.SIGKILL:
            return Overloaded(
                "The process that decodes images was killed, perhaps for want of memory.",
                hint="Retry in a moment.",
            )
        return InvalidValue(
            "The image ended the process that it was decoded in.", hint="Its file is damaged; save it anew."
        )


def image_kind(data: bytes) -> str:
    """What a file's first bytes say it is; raises InvalidValue where it is nothing known, or too large."""
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidValue(
            f"The image has {len(data)} bytes, and may have {MAX_ATTACHMENT_BYTES}.", hint="Send it smaller."
        )
    media_type = media_type_of(data) or ""
    family, _, kind = media_type.partition("/")
    if family != "image":
        raise InvalidValue(
            "The image is in no format that is known here." if data else "The image is empty.",
            hint=f"{KINDS} are read.",
        )
    return kind


def _image_of(reply: bytes) -> DecodedImage:
    try:
        decoded: DecodeReply = msgspec.msgpack.decode(reply, type=DecodeReply)
    except msgspec.MsgspecError as error:
        raise EngineFailed("The image decoder answered nonsense.") from error
    if isinstance(decoded, DecodeRefusal):
        raise InvalidValue(decoded.message, hint=decoded.hint)
    return decoded
