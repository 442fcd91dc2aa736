"""KV that leaves a worker as bytes and comes into one: of sessions that are suspended, moved or resumed.

Law: bytes from outside are judged beside the steps, and adopted only when they can be nothing but cells of
this model. One state is handled at a time, so that at most one lies outside the pool's bound; and none while
a step runs in the background, whose context it might need.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.engines.llama.kv.holder import KvHolder
from ganglion.engines.llama.kv.state_format import (
    TOKEN,
    KvStateShape,
    are_sound,
    checksum_of,
    first_cells,
    head_of,
    kv_fingerprint,
    read_head,
    shape_of,
    token_bytes,
)
from ganglion.engines.llama.native.library import library_path
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.supervision.ipc import MAX_STATE_BYTES, KvLoaded, KvSaved, LoadKv, SaveKv
from ganglion.scheduler.pictures import pictures_in
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.prefix import BLOCK, digests

_logger = logging.getLogger("ganglion.engines")

_MOST_OWNERS: Final = 1024
"""Salts whose KV came from outside that are remembered."""


@dataclass(frozen=True, slots=True)
class KvTransferResult:
    """What became of a question: the cells of its first tokens, where they came in and can be adopted."""

    frame: SaveKv | LoadKv
    length: int = 0
    state: SavedState | None = None


@dataclass(frozen=True, slots=True)
class _OwnFormat:
    """What this worker's states are like."""

    fingerprint: bytes
    magic: int
    shape: KvStateShape


class KvTransfer:
    """Answers questions for KV between a worker's steps, in order."""

    def __init__(
        self,
        model: NativeModel,
        plan: EnginePlan,
        pool: KvPool,
        runner: KvHolder,
        *,
        send: Callable[[KvSaved | KvLoaded], None],
        report: Callable[[KvTransferResult], None],
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._runner = runner
        self._send = send
        self._report = report
        # Several kinds of cache in one state fit only a context of the same shape; and what is computed
        # deterministically is shared with nobody, not even with what it was in an earlier life.
        self._is_possible = model.has_one_cache and not plan.is_deterministic
        self._own: _OwnFormat | None = None
        self._waiting: deque[SaveKv | LoadKv] = deque()
        self._is_busy = False
        self._owners: OrderedDict[str, None] = OrderedDict()

    def ask(self, frame: SaveKv | LoadKv) -> None:
        """Answer a question, now or when its turn comes."""
        if self._is_possible:
            self._waiting.append(frame)
            self.go_on()
        else:
            self._answer_nothing(frame)

    def go_on(self) -> None:
        """Begin with the next question, unless something is still in its way."""
        while self._waiting and not self._is_busy and not self._runner.has_background_step:
            frame = self._waiting.popleft()
            own = self._own = self._own or self._look()
            if own is None:
                self._answer_nothing(frame)
            elif isinstance(frame, SaveKv):
                self._save(frame, own)
            else:
                self._start(self._judge, frame, own)

    def take_in(self, judged: KvTransferResult) -> None:
        """Adopt what was believed, unless as much is there already."""
        self._is_busy = False
        frame = judged.frame
        if isinstance(frame, LoadKv):
            self._send(KvLoaded(frame.id, self._adopt(frame, judged.length, judged.state)))
        self.go_on()

    def came_from_outside(self, salt: str) -> bool:
        """Whether KV under this salt may be what somebody made up: then it says nothing about the device."""
        return salt in self._owners

    def _adopt(self, frame: LoadKv, length: int, state: SavedState | None) -> int:
        if state is None:
            return 0
        chain = digests(frame.salt, frame.tokens)
        known = self._pool.reusable(
            frame.salt, frame.tokens, chain, len(frame.tokens), pictures=pictures_in(frame.tokens)
        )
        if known >= length:
            return known
        self._owners[frame.salt] = None
        if len(self._owners) > _MOST_OWNERS:
            self._owners.popitem(last=False)
        self._runner.hold(self._pool.adopt(frame.salt, frame.tokens[:length]), state)
        return length

    def _save(self, frame: SaveKv, own: _OwnFormat) -> None:
        self._runner.settle(self._pool.take_moves())
        found = self._pool.find(
            frame.salt, frame.tokens, digests(frame.salt, frame.tokens), pictures_in(frame.tokens)
        )
        if found is None or own.shape.size_bytes(found[1]) > MAX_STATE_BYTES:
            self._answer_nothing(frame)
        else:
            source, length = found
            self._start(self._write, frame, length, self._runner.cut(source, length), own)

    def _look(self) -> _OwnFormat | None:
        """What our own library writes; None where that is not known here, or there is no room to look."""
        try:
            fingerprint = kv_fingerprint(
                Path(self._plan.path),
                library_path(),
                self._plan.kv_type,
                self._plan.gpu_layers,
                is_portable=True,
            )
            sample = self._runner.sample()
        except (OSError, GanglionError) as error:
            _logger.warning("KV can be neither saved nor restored: %s", error)
            return None
        shape = shape_of(sample.cells)
        return None if shape is None else _OwnFormat(fingerprint, sample.magic, shape)

    def _answer_nothing(self, frame: SaveKv | LoadKv) -> None:
        self._send(KvSaved(frame.id, b"") if isinstance(frame, SaveKv) else KvLoaded(frame.id, 0))

    # Beside the steps

    def _start(self, work: Callable[..., KvTransferResult], *arguments: object) -> None:
        self._is_busy = True
        threading.Thread(target=lambda: self._report(work(*arguments)), daemon=True).start()

    def _write(self, frame: SaveKv, length: int, state: SavedState, own: _OwnFormat) -> KvTransferResult:
        cells = first_cells(state.cells, length)
        if cells is None:
            self._answer_nothing(frame)
        else:
            tokens = token_bytes(frame.tokens[:length])
            self._send(KvSaved(frame.id, head_of(own.fingerprint, "", tokens, state.magic, cells) + cells))
        return KvTransferResult(frame)

    def _judge(self, frame: LoadKv, own: _OwnFormat) -> KvTransferResult:
        try:
            return self._believed(frame, own) or KvTransferResult(frame)
        except Exception:
            _logger.exception("a saved state could not be read")
            return KvTransferResult(frame)

    def _believed(self, frame: LoadKv, own: _OwnFormat) -> KvTransferResult | None:
        head = read_head(BytesIO(frame.state), len(frame.state), own.fingerprint)
        if head is None:
            return None
        header, start = head
        cells = memoryview(frame.state)[start:]
        length = len(header.tokens) // TOKEN.itemsize
        if (
            not BLOCK <= length <= min(self._plan.parked_tokens, self._plan.context, len(frame.tokens))
            or header.tokens != token_bytes(frame.tokens[:length])
            or header.magic != own.magic
            or len(cells) % SavedState.WORD
            or checksum_of(cells) != header.checksum
            or not are_sound(cells, length, own.shape)
        ):
            return None
        state = SavedState.blank(own.magic, len(cells))
        state.cells[:] = cells
        return KvTransferResult(frame, length, state)
