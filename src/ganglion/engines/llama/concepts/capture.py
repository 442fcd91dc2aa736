"""Reads concepts out of the residual stream while a batch is computed.

Law: rows are reduced to one value a concept as soon as their layer is there; no residuals are kept. One
capture belongs to one context and is touched by the thread that runs it.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed, LoadFailed
from ganglion.engines.concepts.pack import ConceptBook
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.context import NativeContext, Run
from ganglion.engines.llama.native.eval_filter import EvalFilter
from ganglion.engines.llama.native.model import NativeModel
from ganglion.scheduler.spans import Spans

_Rows = npt.NDArray[np.intp]
"""Slot, first position, tokens, and whether the last one's logits are wanted."""
Split = Literal["whole", "even", "consecutive"]
"""How a batch is computed: as it stands, in parts that hold as many rows of each slot, or of each in a row of
consecutive slots."""

RESIDUAL_PREFIX: Final = b"l_out-"
"""How the library calls the residual stream after a layer; the layer's number follows."""
_PROBE: Final = (0, 1)
"""Tokens that are run once to see what the graph is like."""


class Capture:
    """The readouts of one context's batches."""

    def __init__(
        self, model: NativeModel, concepts: ConceptBook, *, batch: int, is_native: bool = True
    ) -> None:
        self._library = model.library
        self._hidden_size = model.hidden_size
        layers = concepts.manifest.layers
        self._layers = {RESIDUAL_PREFIX + str(layer).encode(): index for index, layer in enumerate(layers)}
        self._vectors = [np.ascontiguousarray(each.T) for each in concepts.vectors]
        self._values: Floats = np.zeros((batch, len(layers), len(concepts.manifest.concepts)), np.float32)
        self._residuals: Floats = np.empty((batch, model.hidden_size), np.float32)
        self._is_probing = False
        self._probed: dict[int, int] = {}
        self._narrow: frozenset[int] = frozenset()
        """The layers that hold only the rows whose logits are wanted: the last one, as a rule."""
        self._parts: list[_Rows] = []
        self._has_logits = np.zeros(batch, bool)
        self._read = np.zeros(batch, bool)
        self._parts_seen = [0] * len(layers)
        """In how many parts of the batch each layer was asked for."""
        self._taken = [0] * len(layers)
        """How many rows were read after each layer."""
        self._error: Exception | None = None
        self.filter = EvalFilter(model.library, RESIDUAL_PREFIX, self._on_tensor, is_native=is_native)

    @property
    def reads_outputs(self) -> bool:
        """Whether only rows whose logits are wanted can be read after some layer."""
        return bool(self._narrow)

    def learn(self, context: NativeContext) -> None:
        """See once what the context's graph is like; raises LoadFailed where a layer is not told."""
        self._is_probing = self.filter.is_on = True
        try:
            context.decode([(0, 0, _PROBE, True)])
        finally:
            self._is_probing = self.filter.is_on = False
            context.trim(0, 0)
        self.filter.settle()
        missing = [name.decode() for name, index in self._layers.items() if index not in self._probed]
        if missing:
            raise LoadFailed(
                "Concepts cannot be read out of this model: the library does not expose its residual stream "
                f"({', '.join(missing)}).",
                hint="Load it without concept packs.",
            )
        self._narrow = frozenset(index for index, rows in self._probed.items() if rows < len(_PROBE))

    def decode(
        self,
        context: NativeContext,
        runs: Sequence[Run],
        more: Spans,
        read: Spans,
        split: Split,
    ) -> list[int | None]:
        """Run a batch as the context does, reading some rows of it on the way."""
        if not read:
            return context.decode(runs, more)
        self._begin(runs, more, read, split)
        self.filter.is_on = True
        try:
            rows = context.decode(runs, more)
        finally:
            self.filter.is_on = False
        if self._error is not None:
            raise EngineFailed(f"The residual stream could not be read: {self._error}") from self._error
        expected = int(self._read.sum())
        if any(taken != expected for taken in self._taken):
            raise EngineFailed(
                f"Of {expected} rows, only {min(self._taken)} were computed in the layers that are read."
            )
        return rows

    def values(self, first: int, count: int) -> Floats:
        """What was read of rows that follow each other in the last batch: `[rows, layers, concepts]`."""
        return self._values[first : first + count]

    def _begin(self, runs: Sequence[Run], more: Spans, read: Spans, split: Split) -> None:
        self._has_logits[:] = self._read[:] = False
        row = 0
        for _, _, tokens, wants_logits in runs:
            row += len(tokens)
            self._has_logits[row - 1] = wants_logits
        for first, end in more:
            self._has_logits[first:end] = True
        for first, end in read:
            self._read[first:end] = True
        self._parts = parts_of([(slot, len(tokens)) for slot, _, tokens, _ in runs], split)
        self._parts_seen = [0] * len(self._layers)
        self._taken = [0] * len(self._layers)
        self._error = None

    def _on_tensor(self, name: bytes, tensor: Any, is_asked: bool) -> bool:
        index = self._layers.get(name)
        if index is None:
            return False
        try:
            if self._is_probing:
                self._probed[index] = self._row_count(tensor)
                return True
            return self._wants(index) if is_asked else self._take(index, tensor)
        except Exception as error:  # noqa: BLE001 - there is C below us; it is raised again above
            self._error = error
            return False

    def _wants(self, index: int) -> bool:
        self._parts_seen[index] += 1
        return bool(self._read[self._part(index)].any())

    def _part(self, index: int) -> _Rows:
        """The rows of the batch that a layer's tensor holds, in its own order."""
        part = self._parts_seen[index] - 1
        if part >= len(self._parts):
            raise EngineFailed(f"a batch was computed in more than {len(self._parts)} parts")
        rows = self._parts[part]
        return rows[self._has_logits[rows]] if index in self._narrow else rows

    def _take(self, index: int, tensor: Any) -> bool:
        rows = self._part(index)
        count = self._row_count(tensor)
        if count != len(rows):
            raise EngineFailed(f"a layer holds {count} rows, expected {len(rows)}")
        is_read = self._read[rows]
        read_rows = np.flatnonzero(is_read)
        first, end = int(read_rows[0]), int(read_rows[-1]) + 1
        residuals = self._residuals_of(tensor, first, end)
        if len(read_rows) < end - first:
            residuals = residuals[is_read[first:end]]
        self._values[rows[is_read], index] = residuals @ self._vectors[index]
        self._taken[index] += len(read_rows)
        return True

    def _row_count(self, tensor: Any) -> int:
        lib = self._library.lib
        elements: int = lib.ggml_nelements(tensor)
        if lib.ggml_nbytes(tensor) != elements * 4 or elements % self._hidden_size:
            raise EngineFailed(
                f"a layer holds {elements} values, expected rows of {self._hidden_size} floats"
            )
        return elements // self._hidden_size

    def _residuals_of(self, tensor: Any, first: int, end: int) -> Floats:
        # Copied by the library: wherever it computes, the tensor may not lie in memory that we can read.
        found = self._residuals[first:end]
        row_bytes = self._hidden_size * 4
        pointer = self._library.ffi.cast("void *", found.ctypes.data)
        self._library.lib.ggml_backend_tensor_get(tensor, pointer, first * row_bytes, len(found) * row_bytes)
        return found


def parts_of(runs: Sequence[tuple[int, int]], split: Split) -> list[_Rows]:
    """The rows of a batch, given the slot and the length of each run, in the parts that the library makes."""
    starts = np.cumsum([0, *(count for _, count in runs)])
    if split == "whole":
        return [np.arange(starts[-1])]
    pending = [(slot, int(start), count) for (slot, count), start in zip(runs, starts, strict=False)]
    parts: list[_Rows] = []
    while pending:
        chosen = [pending[0]]
        for run in pending[1:]:
            if split == "even" or run[0] == chosen[-1][0] + 1:
                chosen.append(run)
        size = min(count for _, _, count in chosen)
        parts.append(np.concatenate([np.arange(start, start + size) for _, start, _ in chosen]))
        taken = {slot for slot, _, _ in chosen}
        rest = [
            (slot, start + size, count - size) if slot in taken else (slot, start, count)
            for slot, start, count in pending
        ]
        pending = [run for run in rest if run[2] > 0]
    return parts
