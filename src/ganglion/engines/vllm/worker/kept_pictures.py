"""The pictures that a worker has: processed beside the event loop, and kept for the requests they came for.

Law: a picture belongs to the tenant that sent it. One that was sent or asked for a moment ago waits for its
request; of the others the least recently used go where all together take more than `PICTURE_BYTES`. None is
taken in beyond `MOST_BYTES`. A request that runs has its own hold on its pictures.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from ganglion.core.errors import EngineFailed, GanglionError, Overloaded, UnsupportedParameter
from ganglion.engines.fair_thread import FairThread
from ganglion.engines.images.row_ids import row_ids
from ganglion.engines.supervision.ipc import FromWorker, ImagePlaced, PlaceImage
from ganglion.engines.vllm.special_runs import PICTURE_BYTES

if TYPE_CHECKING:  # tests keep pictures where there is no vLLM
    from ganglion.engines.vllm.worker.picture_processing import PictureProcessor, ProcessedPicture

MOST_BYTES: Final = 1024 * 2**20
_FRESH_S: Final = 60.0
_WAITING_BYTES: Final = 512 * 2**20
_WAITING_BYTES_EACH: Final = 256 * 2**20
"""Pixels that wait to be processed."""

_Key = tuple[str, str]
"""A tenant and a digest."""


@dataclass(slots=True)
class _Entry:
    picture: "ProcessedPicture"
    fresh_until_s: float


class KeptPictures:
    """The pictures of one checkpoint; `send` and `refuse` are called on a thread of its own, too."""

    def __init__(
        self,
        processor: "PictureProcessor",
        send: Callable[[FromWorker], None],
        refuse: Callable[[int, GanglionError], None],
    ) -> None:
        self._processor = processor
        self._send = send
        self._refuse = refuse
        self._kept: OrderedDict[_Key, _Entry] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._thread: FairThread[PlaceImage] = FairThread(
            self._process_all, most=_WAITING_BYTES, most_each=_WAITING_BYTES_EACH, of="pictures"
        )

    def ask(self, frame: PlaceImage) -> None:
        """Answer what a picture becomes; one that is here already at once."""
        picture = self._find((frame.tenant, frame.digest))
        if picture is not None or not frame.rgb:
            self._send(ImagePlaced(frame.id, [] if picture is None else _ids(frame.digest, picture)))
            return
        try:
            self._thread.put(frame.tenant, frame, 1 + len(frame.rgb))
        except GanglionError as error:
            self._refuse(frame.id, error)

    def of_request(
        self, tenant: str, images: Sequence[tuple[int, str]]
    ) -> "list[tuple[int, ProcessedPicture]]":
        """The pictures of a request that begins, by where they begin."""
        if len(images) > self._processor.most:
            raise UnsupportedParameter(
                f"The model takes {self._processor.most} images in one prompt, and these are {len(images)}.",
                hint="Send fewer images.",
            )
        found: list[tuple[int, ProcessedPicture]] = []
        for start, digest in images:
            picture = self._find((tenant, digest))
            if picture is None:
                raise Overloaded("Too many pictures were sent at once.", hint="Retry in a moment.")
            found.append((start, picture))
        return found

    def _find(self, key: _Key) -> "ProcessedPicture | None":
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            entry.fresh_until_s = monotonic() + _FRESH_S
            return entry.picture

    # On a thread of its own

    def _process_all(self) -> None:
        while True:
            frame = self._thread.get()
            try:
                self._send(ImagePlaced(frame.id, _ids(frame.digest, self._processed(frame))))
            except GanglionError as error:
                self._refuse(frame.id, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this picture's end
                self._refuse(frame.id, EngineFailed(f"vLLM failed: {type(error).__name__}: {error}"))

    def _processed(self, frame: PlaceImage) -> "ProcessedPicture":
        key = (frame.tenant, frame.digest)
        picture = self._find(key)
        if picture is not None:
            return picture
        identifier = hashlib.sha256(f"{frame.tenant} {frame.digest}".encode()).hexdigest()
        picture = self._processor.process(frame.width, frame.height, frame.rgb, identifier)
        with self._lock:
            self._make_room(picture.size_bytes)
            self._kept[key] = _Entry(picture, monotonic() + _FRESH_S)
            self._bytes += picture.size_bytes
        return picture

    def _make_room(self, size_bytes: int) -> None:
        """Let go of what nobody waits for; raises Overloaded where that is not enough."""
        now_s = monotonic()
        for key, entry in list(self._kept.items()):
            if self._bytes + size_bytes <= PICTURE_BYTES:
                return
            if entry.fresh_until_s <= now_s:
                del self._kept[key]
                self._bytes -= entry.picture.size_bytes
        if self._bytes + size_bytes > MOST_BYTES:
            raise Overloaded("Too many pictures wait for their requests.", hint="Retry in a moment.")


def _ids(digest: str, picture: "ProcessedPicture") -> list[int]:
    """What stands for a picture in a token list: its tokens, and of its rows ids that are nobody else's."""
    rows = iter(row_ids(digest, sum(picture.is_row)))
    return [
        next(rows) if is_row else token for token, is_row in zip(picture.tokens, picture.is_row, strict=True)
    ]
