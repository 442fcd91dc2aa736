"""Reads pictures beside the steps: what each becomes is told at once, its rows come when they are needed.

Law: a picture belongs to the tenant that sent it. Those that running requests use are kept, and those that
were sent a moment ago, for a request that is about to come; of the others, the least recently used go where
all together take more than `KEPT_BYTES`. None is taken in beyond `MOST_BYTES`. One is read at a time, tenants
in turn, on a thread of its own, so that no step waits for it.
"""

import hashlib
import os
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import clock_gettime, monotonic, pthread_getcpuclockid
from typing import Final

import numpy as np

from ganglion.core.errors import GanglionError, InvalidValue, LoadFailed, Overloaded
from ganglion.engines.fair_thread import FairThread
from ganglion.engines.images.row_ids import row_ids
from ganglion.engines.llama.native.mtmd import PictureLayout, Projector, Stretch
from ganglion.engines.llama.native.picture_rows import PictureRows
from ganglion.engines.supervision.ipc import FromWorker, ImagePlaced, PlaceImage
from ganglion.scheduler.pictures import Picture

KEPT_BYTES: Final = 128 * 2**20
"""Of pictures that no running request uses: what was read of them, or their pixels until then."""
MOST_BYTES: Final = 1024 * 2**20
_FRESH_S: Final = 60.0
"""How long a picture waits for the request that it was sent for: others of the request come in between."""
_PIXEL_BYTES: Final = 48 * 2**10
"""What the library keeps of a picture for each of its rows until it is read; the most that a projector was
seen to want."""
_WAITING: Final = 1024
_WAITING_EACH: Final = 512
"""Pictures that wait to be read, and of one tenant."""
_UNPLACED_BYTES: Final = 512 * 2**20
_UNPLACED_BYTES_EACH: Final = 256 * 2**20
"""Pixels that wait to be looked at."""
_LONGEST_S: Final = 600.0
"""Of processor time for one picture that still counts as progress."""
_HEAD_BYTES: Final = 2**20
"""By so much of its beginning, and its size, a projector file is told from another."""
_PROBES: Final = ((64, 64), (1600, 900))
"""Sizes of pictures that are laid out when a projector is loaded: small, and one that may be sliced."""


@dataclass(slots=True, eq=False)
class KeptPicture:
    """A picture that the worker has: its pixels until it is read, its rows afterwards."""

    key: tuple[str, str]
    """Its tenant and its digest."""
    ids: list[int]
    stretches: tuple[Stretch, ...]
    layout: PictureLayout | None
    size_bytes: int
    rows: tuple[PictureRows, ...] = ()
    users: int = 0
    fresh_until_s: float = 0.0
    is_asked: bool = False
    """Whether its reading waits or runs."""

    def pictures(self, start: int) -> tuple[Picture, ...]:
        """Where its rows stand in a token list that it begins in at `start`."""
        found: list[Picture] = []
        for stretch in self.stretches:
            if stretch.rows:
                found.append(Picture(start, start + stretch.rows, stretch.is_whole, bool(self.rows)))
            start += stretch.rows + len(stretch.tokens)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class PictureRead:
    """What became of a picture that was asked for: its rows are in it, or an error says why not."""

    kept: KeptPicture
    error: GanglionError | None = None


class PictureReader:
    """The pictures of one projector; `use`, `leave` and `read` are for the step thread."""

    def __init__(
        self,
        projector: Projector,
        path: str,
        *,
        most_rows: int,
        send: Callable[[FromWorker], None],
        refuse: Callable[[int, GanglionError], None],
        report: Callable[[PictureRead], None],
    ) -> None:
        """`most_rows` is how many rows a batch may have; `send`, `refuse`, `report` are called on threads."""
        self._projector = projector
        self._most_rows = most_rows
        self._send = send
        self._refuse = refuse
        self._report = report
        self._salt = _fingerprint(Path(path))
        self._kept: OrderedDict[tuple[str, str], KeptPicture] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._placing: FairThread[PlaceImage] = FairThread(
            self._place_all, most=_UNPLACED_BYTES, most_each=_UNPLACED_BYTES_EACH, of="pictures"
        )
        self._reading: FairThread[KeptPicture] = FairThread(
            self._read_all, most=_WAITING, most_each=_WAITING_EACH, of="pictures"
        )
        self._began_s: float | None = None
        self._looked_s = 0.0

    def probe(self) -> None:
        """Lay out pictures without pixels; raises LoadFailed where the projector cannot serve this model."""
        for width, height in _PROBES if self._projector.sees else ():
            try:
                layout = self._projector.lay_out(width, height, None)
            except InvalidValue as error:
                raise LoadFailed(f"The projector reads no picture: {error.message}") from error
            layout.free()

    # Asked by the reader thread

    def ask(self, frame: PlaceImage) -> None:
        """Answer what a picture becomes; one that is here already at once."""
        kept = self._find(frame.tenant, frame.digest)
        if kept is not None or not (frame.rgb or frame.sound):
            self._send(ImagePlaced(frame.id, [] if kept is None else kept.ids))
            return
        try:
            self._placing.put(frame.tenant, frame, 1 + len(frame.rgb) + len(frame.sound))
        except GanglionError as error:
            self._refuse(frame.id, error)

    @property
    def is_getting_on(self) -> bool:
        """Whether the picture that is read took processor time since this was last asked."""
        thread, began_s = self._reading.thread, self._began_s
        if thread is None or thread.ident is None or began_s is None:
            return False
        looked_s, self._looked_s = self._looked_s, clock_gettime(pthread_getcpuclockid(thread.ident))
        return looked_s < self._looked_s < began_s + _LONGEST_S

    # Asked by the step thread

    def use(self, tenant: str, digest: str) -> KeptPicture | None:
        """Keep a picture for a request that begins; None where it is not here."""
        with self._lock:
            kept = self._kept.get((tenant, digest))
            if kept is not None:
                kept.users += 1
                kept.fresh_until_s = 0.0
            return kept

    def leave(self, kept: KeptPicture) -> None:
        """A request that used a picture is over."""
        with self._lock:
            kept.users -= 1
            self._bound()

    def read(self, kept: KeptPicture) -> None:
        """Have a picture read, unless it is; `report` tells when it was."""
        if kept.rows or kept.is_asked:
            return
        kept.is_asked = True
        try:
            self._reading.put(kept.key[0], kept)
        except GanglionError as error:
            kept.is_asked = False
            self._report(PictureRead(kept, error))

    # On threads of its own

    def _place_all(self) -> None:
        with _fatal():
            while True:
                frame = self._placing.get()
                try:
                    self._send(ImagePlaced(frame.id, self._place(frame).ids))
                except GanglionError as error:
                    self._refuse(frame.id, error)

    def _place(self, frame: PlaceImage) -> KeptPicture:
        kept = self._find(frame.tenant, frame.digest)
        if kept is not None:
            return kept
        if frame.sound:
            layout = self._projector.lay_out_sound(np.frombuffer(frame.sound, np.float32))
        else:
            layout = self._projector.lay_out(frame.width, frame.height, frame.rgb)
        try:
            self._check(layout.stretches)
        except GanglionError:
            layout.free()
            raise
        ids = self._ids(frame.digest, layout.stretches)
        size_bytes = _PIXEL_BYTES * layout.row_count
        kept = KeptPicture((frame.tenant, frame.digest), ids, layout.stretches, layout, size_bytes)
        kept.fresh_until_s = monotonic() + _FRESH_S
        with self._lock:
            self._bytes += size_bytes
            self._bound()
            has_room = self._bytes <= MOST_BYTES
            if has_room:
                self._kept[kept.key] = kept
            else:
                self._bytes -= size_bytes
        if not has_room:
            layout.free()
            raise Overloaded("Too many pictures wait to be read.", hint="Retry in a moment.")
        return kept

    def _read_all(self) -> None:
        with _fatal():
            clock = pthread_getcpuclockid(threading.get_ident())
            while True:
                kept = self._reading.get()
                self._began_s = clock_gettime(clock)
                if kept.users:  # else whoever wanted it has left
                    self._report(self._read(kept))
                kept.is_asked = False
                self._began_s = None

    def _read(self, kept: KeptPicture) -> PictureRead:
        assert kept.layout is not None
        try:
            rows = self._projector.encode(kept.layout)
        except GanglionError as error:
            return PictureRead(kept, error)
        size_bytes = sum(each.rows.nbytes for each in rows)
        with self._lock:
            kept.rows, layout, kept.layout = rows, kept.layout, None
            self._bytes += size_bytes - kept.size_bytes
            kept.size_bytes = size_bytes
            self._bound()
        layout.free()
        return PictureRead(kept)

    def _find(self, tenant: str, digest: str) -> KeptPicture | None:
        with self._lock:
            kept = self._kept.get((tenant, digest))
            if kept is not None:
                self._kept.move_to_end(kept.key)
                if not kept.users:
                    kept.fresh_until_s = monotonic() + _FRESH_S
            return kept

    def _bound(self) -> None:
        """Let go of what is not used and has no room."""
        if self._bytes <= KEPT_BYTES:
            return
        now_s = monotonic()
        for kept in list(self._kept.values()):
            if kept.users or kept.is_asked or kept.fresh_until_s > now_s:
                continue
            del self._kept[kept.key]
            self._bytes -= kept.size_bytes
            if kept.layout is not None:
                kept.layout.free()
            if self._bytes <= KEPT_BYTES:
                return

    def _check(self, stretches: tuple[Stretch, ...]) -> None:
        most = max((stretch.rows for stretch in stretches if stretch.is_whole), default=0)
        if most > self._most_rows:
            raise InvalidValue(
                f"The model reads a picture of this size in {most} positions at once, and {self._most_rows} "
                "fit into a batch.",
                hint="Send it smaller.",
            )

    def _ids(self, digest: str, stretches: tuple[Stretch, ...]) -> list[int]:
        """What stands for it in a token list: the same for the same picture and projector, anywhere."""
        rows = sum(stretch.rows for stretch in stretches)
        numbers = iter(row_ids(f"{self._salt} {digest}", rows))
        ids: list[int] = []
        for stretch in stretches:
            ids += stretch.tokens if not stretch.rows else [next(numbers) for _ in range(stretch.rows)]
        return ids


@contextmanager
def _fatal() -> Iterator[None]:
    """What is raised inside ends the worker: without this thread it would owe answers for ever."""
    try:
        yield
    finally:
        traceback.print_exc()
        os._exit(1)


def _fingerprint(path: Path) -> str:
    """What tells one projector file from another, on whatever machine it lies."""
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(_HEAD_BYTES))
    return f"{path.stat().st_size} {head.hexdigest()}"
