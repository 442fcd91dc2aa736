"""One KV cache and its compute buffers, with a batch that numpy fills in place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ganglion.core.errors import EngineFailed
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.graph_chain import GraphChain
from ganglion.engines.llama.native.library import Library
from ganglion.engines.llama.native.picture_rows import PictureRows
from ganglion.engines.llama.native.sampler_chain import SamplerChain
from ganglion.engines.llama.native.saved_state import SavedState

Run = tuple[int, int, Sequence[int] | PictureRows, bool]
"""A slot, a position, tokens or rows of a picture, and whether the last one's logits are wanted.

The position is that of the first token or row; where rows have coordinates, that of their picture.
"""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What a model's numbers come in: logits, residuals, rows of input, layers, and vectors."""

    vocabulary: int
    hidden: int
    input: int
    blocks: int
    vector: int
    has_coordinates: bool = False


class NativeContext:
    """A context over a model's weights."""

    def __init__(
        self, library: Library, sizes: ModelSizes, pointer: Any, batch: int, *, streams: int
    ) -> None:
        self._streams = streams
        ffi, lib = library.ffi, library.lib
        self._library, self._sizes = library, sizes
        self._ffi, self._lib, self._pointer = ffi, lib, pointer
        self._memory = lib.llama_get_memory(pointer)
        self._tokens = np.zeros(batch, np.int32)
        self._positions = np.zeros(batch, np.int32)
        self._slots = np.zeros(batch, np.int32)
        self._counts = np.ones(batch, np.int32)
        self._has_output = np.zeros(batch, np.int8)
        # One flat array of slot numbers with a pointer into it per row: no Python loop fills a batch.
        base = ffi.cast("llama_seq_id *", self._slots.ctypes.data)
        self._slot_pointers = ffi.new("llama_seq_id *[]", [base + row for row in range(batch)])
        self._batch = ffi.new("llama_batch *")
        self._grid = np.empty(4 * batch if sizes.has_coordinates else 0, np.int32)
        self._position_pointer = ffi.cast("llama_pos *", self._positions.ctypes.data)
        self._batch.n_seq_id = ffi.cast("int32_t *", self._counts.ctypes.data)
        self._batch.seq_id = self._slot_pointers
        self._token_pointer = ffi.cast("llama_token *", self._tokens.ctypes.data)
        self._rows: Floats = np.empty((0, sizes.input), np.float32)
        """Rows of embeddings, made room for by the first batch that has some."""
        self._copies: dict[int, int | None] = {}
        """Slots that are copied with the next batch, each target with the length that it is cut to."""
        self._batch.logits = ffi.cast("int8_t *", self._has_output.ctypes.data)

    def decode(self, runs: Iterable[Run], more: Iterable[tuple[int, int]] = ()) -> list[int | None]:
        """Run one batch of (slot, first position, tokens, wants logits); returns each run's logits row.

        In place of tokens there may be rows of pictures, then in every run. `more` are spans of rows of the
        batch whose logits, or vectors, are wanted too.
        """
        row = 0
        is_causal = True
        placed: list[tuple[int, int, PictureRows]] = []
        rows: list[int | None] = []
        self._choose_input(tokens=True)
        for slot, start, tokens, wants_logits in runs:
            end = row + len(tokens)
            if isinstance(tokens, PictureRows):
                self._choose_input(tokens=False)
                self._rows[row:end] = tokens.rows
                is_causal = is_causal and not tokens.is_whole
                placed.append((row, start, tokens))
            else:
                self._tokens[row:end] = tokens
            self._positions[row:end] = range(start, start + len(tokens))
            self._slots[row:end] = slot
            self._has_output[row:end] = 0
            if wants_logits:
                self._has_output[end - 1] = 1
            rows.append(end - 1 if wants_logits else None)
            row = end
        for first, end in more:
            self._has_output[first:end] = 1
        self._batch.n_tokens = row
        self._place(placed, row)
        if not is_causal:
            self._lib.llama_set_causal_attn(self._pointer, False)
        status = self._lib.llama_decode(self._pointer, self._batch[0])
        if not is_causal:
            self._lib.llama_set_causal_attn(self._pointer, True)
        if status != 0:
            raise EngineFailed(f"llama_decode returned {status} for a batch of {row} tokens.")
        self._copies.clear()
        # A device computes on after `llama_decode`: who reads first would wait, in time that is nobody's.
        self._lib.llama_synchronize(self._pointer)
        return rows

    def _place(self, placed: Sequence[tuple[int, int, PictureRows]], count: int) -> None:
        """Lay out the coordinates of a batch of pictures, where its rows have some, kind by kind."""
        if not any(rows.places is not None for _, _, rows in placed):
            self._batch.pos = self._position_pointer
            return
        grid = np.empty((4, count), np.int32)
        for row, start, rows in placed:
            assert rows.places is not None
            grid[:3, row : row + len(rows)] = rows.places[:3] + start
            grid[3, row : row + len(rows)] = rows.places[3]
        self._grid[: grid.size] = grid.ravel()
        self._batch.pos = self._ffi.cast("llama_pos *", self._grid.ctypes.data)

    def _choose_input(self, *, tokens: bool) -> None:
        """Let the batch be of tokens, or of rows of embeddings."""
        ffi, batch = self._ffi, self._batch
        if tokens:
            batch.token, batch.embd = self._token_pointer, ffi.NULL
            return
        if not len(self._rows):
            self._rows = np.empty((len(self._tokens), self._sizes.input), np.float32)
        batch.token, batch.embd = ffi.NULL, ffi.cast("float *", self._rows.ctypes.data)

    def steer(self, vectors: Floats | None) -> None:
        """Add a vector after each layer from 1 on, `[layers, hidden]`, to all that is decoded from now on."""
        size, last = self._sizes.hidden, self._sizes.blocks - 1
        if vectors is None:
            status = self._lib.llama_set_adapter_cvec(self._pointer, self._ffi.NULL, 0, size, 1, last)
        else:
            assert vectors.shape == (last, size)
            held = np.ascontiguousarray(vectors, np.float32)
            data = self._ffi.cast("const float *", held.ctypes.data)
            status = self._lib.llama_set_adapter_cvec(self._pointer, data, held.size, size, 1, last)
        if status != 0:
            raise EngineFailed(f"The library could not steer: {self._library.last_error()}")

    def logits(self, row: int) -> Floats:
        """The logits of a row of the last batch, as a view that sampling may change."""
        pointer = self._lib.llama_get_logits_ith(self._pointer, row)
        if pointer == self._ffi.NULL:
            raise EngineFailed(f"The library has no logits for row {row}.")
        size = self._sizes.vocabulary
        return np.frombuffer(self._ffi.buffer(pointer, size * 4), np.float32)

    def logits_of(self, first: int, count: int) -> Floats:
        """The logits of rows that follow each other in the last batch and were all wanted, as a view."""
        vocabulary_size = self._sizes.vocabulary
        start, end = (self.logits(row).ctypes.data for row in (first, first + count - 1))
        if end - start != (count - 1) * vocabulary_size * 4:
            raise EngineFailed(
                f"The library's logits of rows {first} to {first + count - 1} are not contiguous."
            )
        pointer = self._lib.llama_get_logits_ith(self._pointer, first)
        view = np.frombuffer(self._ffi.buffer(pointer, count * vocabulary_size * 4), np.float32)
        return view.reshape(count, vocabulary_size)

    def vectors_of(self, first: int, count: int) -> Floats:
        """The vectors of rows that follow each other in the last batch, as a copy."""
        size = self._sizes.vector
        found = np.empty((count, size), np.float32)
        for row in range(count):
            pointer = self._lib.llama_get_embeddings_ith(self._pointer, first + row)
            found[row] = self._vector(pointer, size)
        return found

    def pooled(self, slot: int, size: int) -> Floats:
        """What the last batch made of a slot as a whole, as a copy."""
        return self._vector(self._lib.llama_get_embeddings_seq(self._pointer, slot), size).copy()

    def _vector(self, pointer: Any, size: int) -> Floats:
        if pointer == self._ffi.NULL:
            raise EngineFailed("The library computed no vector for this input.")
        return np.frombuffer(self._ffi.buffer(pointer, size * 4), np.float32)

    @property
    def has_memory(self) -> bool:
        """Whether it keeps KV at all: encoders read everything at once and keep nothing."""
        has: bool = self._memory != self._ffi.NULL
        return has

    def trim(self, slot: int, length: int) -> bool:
        """Forget a slot's positions from `length` on."""
        held = self._copies.get(slot)
        if held is not None:
            self._copies[slot] = min(held, length)
        is_done: bool = self._lib.llama_memory_seq_rm(self._memory, slot, length, -1)
        return is_done

    def share(self, source: int, target: int, length: int) -> None:
        """Let the target slot see the source's first cells; only in a unified context."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a slot's first cells into another slot; the device does it before the next batch."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        if not self.trim(target, length):
            raise EngineFailed(f"The library could not cut slot {target} to {length} tokens.")
        self._copies |= {source: None, target: length}

    def _settle(self, slot: int) -> None:
        """Let a copy that touches the slot be done now: the library does it with a batch, so one row is run.

        Saving and loading read and write the cells themselves, and would otherwise come before it.
        """
        if slot not in self._copies:
            return
        target, length = next((slot, held) for slot, held in self._copies.items() if held is not None)
        self.decode([(target, length, [0], False)])
        self.trim(target, length)

    def save(self, slot: int) -> SavedState:
        """A slot's KV, to be loaded into any slot of any context of the same model."""
        self._settle(slot)
        size = self._lib.llama_state_seq_get_size(self._pointer, slot)
        # So much earlier that the cells begin at a fixed place, however many empty streams precede them.
        stream = slot if self._streams > 1 else 0
        start = SavedState.MARGIN - 4 * stream
        words = np.empty((2 * SavedState.MARGIN + size) // 4 + 1, np.uint32)
        pointer = self._ffi.cast("uint8_t *", words.ctypes.data + start)
        if self._lib.llama_state_seq_get_data(self._pointer, pointer, size, slot) == 0:
            raise EngineFailed("The library could not save a sequence's state.")
        header = words[start // 4 : SavedState.MARGIN // 4 + 3]
        if header[2] != self._streams or header[3 : 3 + stream].any():
            raise EngineFailed("The library saves sequences in a format that this binding does not know.")
        end = start + size - 4 * (self._streams - 1 - stream)
        return SavedState(words, int(header[0]), end)

    def load(self, slot: int, state: SavedState) -> None:
        """Put saved KV into an empty slot."""
        if not self.try_load(slot, state):
            raise EngineFailed(f"The library could not restore a sequence: {self._library.last_error()}")

    def try_load(self, slot: int, state: SavedState) -> bool:
        """Put saved KV into an empty slot, or leave it empty when it does not fit."""
        self._settle(slot)
        address, size = state.framed(slot, self._streams)
        pointer = self._ffi.cast("const uint8_t *", address)
        read: int = self._lib.llama_state_seq_set_data(self._pointer, pointer, size, slot)
        return read > 0

    def free(self) -> None:
        """Give the cache back."""
        self._lib.llama_free(self._pointer)

    def attach(self, slot: int, chain: GraphChain) -> bool:
        """Let a chain draw in the graph for the rows of a slot; says whether the device runs some of it."""
        is_attached: bool = self._lib.llama_set_sampler(self._pointer, slot, chain.pointer)
        return is_attached

    def detach(self, slot: int) -> None:
        """Give a slot's rows back to the host as logits."""
        self._lib.llama_set_sampler(self._pointer, slot, self._ffi.NULL)

    def drawn(self, row: int) -> tuple[int, float]:
        """The token that the graph drew for a row of the last batch, and the sum of the row's logits."""
        token: int = self._lib.llama_get_sampled_token_ith(self._pointer, row)
        total = self._lib.llama_get_sampled_logits_ith(self._pointer, row)
        if token < 0 or total == self._ffi.NULL:
            raise EngineFailed(f"The library drew no token for row {row}.")
        return token, float(total[0])

    def sample(self, chain: SamplerChain, row: int) -> int:
        """Draw a token from a row's logits."""
        token: int = self._lib.llama_sampler_sample(chain.pointer, self._pointer, row)
        return token
