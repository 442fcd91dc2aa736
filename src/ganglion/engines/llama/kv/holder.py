"""The port to whoever runs the model's steps, for keeping and moving KV."""

from collections.abc import Iterable
from typing import Protocol

from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.scheduler.slots import BlobId, Move, Slot


class KvHolder(Protocol):
    """Holds the native contexts and the blobs; for the step thread."""

    @property
    def has_background_step(self) -> bool:
        """Whether a step in the background was started and not collected yet."""

    def settle(self, moves: Iterable[Move]) -> None:
        """Let the step in the background end and carry out moves that precede no step."""

    def state(self, source: Slot | BlobId) -> SavedState:
        """What a slot or a blob holds."""

    def cut(self, source: Slot | BlobId, length: int) -> SavedState:
        """What a slot or a blob holds, its first positions at least."""

    def sample(self) -> SavedState:
        """One cell as the library writes it here, to know states of this model by."""

    def hold(self, blob: BlobId, state: SavedState) -> None:
        """Keep a state that the pool adopted."""
