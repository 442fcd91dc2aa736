"""Q4_1 weights in a form that the library multiplies fast: the same numbers, in two parts.

The library has no matrix kernel for Q4_1, in which a weight is its block's `scale * quant + least`. As
`scale * (quant - 8) + offset` the first part is Q4_0, for which it has one, and the second needs no more of
the activations than the sum of each block: a matrix that sums, then one of the offsets. That is what a
low-rank adapter computes, so the library's own graph adds the two.

Law: no weight changes by more than the rounding of its offset to 16 bits; quants and scales are copied. And a
row of activations gives the same whatever stands beside it, as with the kernel for Q4_1: matrices of floats
are multiplied in another order when a row is alone, so none is used. Offsets are two matrices of 8 bits each.
"""

import logging
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import LoadFailed
from ganglion.engines.llama.native.gguf import GgufHeader, GgufTensor, new_header, read_header
from ganglion.engines.llama.native.library import Library
from ganglion.engines.llama.native.model import NativeModel, load_model
from ganglion.engines.llama.plan import EnginePlan

_IS_FASTER: Final = sys.platform == "linux" and platform.machine() == "x86_64"
"""Where this was measured, and memory files exist; other processors have other kernels."""
LEAST_WEIGHTS: Final = 1 << 18
"""Smaller matrices gain less than the two further products cost."""

Q4_0, Q4_1, Q8_0 = 2, 3, 8
BLOCK: Final = 32
Q4_1_BLOCK: Final = np.dtype([("scale", "<f2"), ("least", "<f2"), ("quants", "u1", (BLOCK // 2,))])
_Q4_0_BLOCK: Final = np.dtype([("scale", "<f2"), ("quants", "u1", (BLOCK // 2,))])
_Q8_0_BLOCK: Final = np.dtype([("scale", "<f2"), ("quants", "i1", (BLOCK,))])
_LARGEST: Final = 127
"""Of the quants of Q8_0."""
_MIDDLE: Final = 8
"""The quant that stands for 0 in Q4_0."""
ZEROS, ONES = 0x88, 0x99
"""Two quants each."""

_Offsets = npt.NDArray[np.float32]


def load_repacked(library: Library, path: str) -> NativeModel:
    """Load a model with its large Q4_1 matrices recast; as it is when that cannot be, or when it has none."""
    model = None
    if _IS_FASTER:
        # No files in memory, no room for them, or a damaged file: of which the library then tells.
        with suppress(OSError, MemoryError, LoadFailed):
            model = _repacked(library, path)
    return model or load_model(library, path, gpu_layers=0)


def _repacked(library: Library, path: str) -> NativeModel | None:
    with read_header(library, path) as header:
        chosen = tuple(_repackable(header))
        if not chosen or header.has("split.count"):
            return None
        with (
            _memory_file("model") as model_path,
            _memory_file("offsets") as adapter_path,
            new_header(library, 2 * len(chosen)) as adapter,
            ThreadPoolExecutor(1) as beside,
        ):
            offsets = _write_model(header, path, frozenset(each.name for each in chosen), model_path)
            adapter.set_text("general.architecture", header.text("general.architecture"))
            writing = beside.submit(_write_adapter, adapter, chosen, offsets, adapter_path)
            # Not mapped: what the weights were copied from is given back.
            model = load_model(library, model_path, gpu_layers=0, is_mapped=False)
            try:
                writing.result()
            except BaseException:
                model.free()
                raise
            model.adapt(adapter_path)
            return model


def _repackable(header: GgufHeader) -> Iterator[GgufTensor]:
    for tensor in header.tensors():
        width, height, *others = tensor.shape
        is_of_a_layer = others == [1, 1] and tensor.name.startswith("blk.")
        if tensor.kind == Q4_1 and is_of_a_layer and width * height >= LEAST_WEIGHTS:
            yield tensor


def _write_model(header: GgufHeader, path: str, chosen: frozenset[str], target: str) -> dict[str, _Offsets]:
    """Copy a file with some tensors as Q4_0; returns what each of these lacks, a number a block."""
    before, start = header.tensors(), header.data_offset
    for name in chosen:
        header.set_kind(name, Q4_0)
    offsets: dict[str, _Offsets] = {}

    def data() -> Iterator[bytes]:
        with Path(path).open("rb", buffering=0) as source:
            for tensor in before:
                read = os.pread(source.fileno(), tensor.size_bytes, start + tensor.offset)
                if len(read) < tensor.size_bytes:
                    raise LoadFailed(f"{path} is shorter than it says.")
                if tensor.name in chosen:
                    read, offsets[tensor.name] = split_q4_1(read)
                yield read

    _write(header, data(), target)
    return offsets


def _write_adapter(
    header: GgufHeader, tensors: Iterable[GgufTensor], offsets: dict[str, _Offsets], target: str
) -> None:
    """An adapter that adds each tensor's offsets, times the sums of the activations' blocks."""
    header.set_text("general.type", "adapter")
    header.set_text("adapter.type", "lora")
    header.set_number("adapter.lora.alpha", 0.0)  # which scales nothing
    parts: list[bytes] = []
    for tensor in tensors:
        width, height, *_ = tensor.shape
        header.add(f"{tensor.name}.lora_a", Q4_0, width, 2 * _padded(width // BLOCK))
        header.add(f"{tensor.name}.lora_b", Q8_0, 2 * _padded(width // BLOCK), height)
        parts += block_sums(width), split_offsets(offsets[tensor.name].reshape(height, -1))
    _write(header, parts, target)


def split_q4_1(data: bytes) -> tuple[bytes, _Offsets]:
    """Q4_1 blocks as Q4_0 blocks, and what every weight of each block is larger by."""
    blocks = np.frombuffer(data, Q4_1_BLOCK)
    centred = np.empty(len(blocks), _Q4_0_BLOCK)
    centred["scale"], centred["quants"] = blocks["scale"], blocks["quants"]
    offsets = blocks["least"].astype(np.float32) + _MIDDLE * blocks["scale"].astype(np.float32)
    return centred.tobytes(), offsets


def _padded(count: int) -> int:
    """So many numbers in whole blocks."""
    return -(-count // BLOCK) * BLOCK


def split_offsets(rows: _Offsets) -> bytes:
    """A Q8_0 matrix of rows twice as long: what 8 bits hold of each number, then of what that leaves."""
    room = _padded(rows.shape[1])
    left = np.pad(rows, ((0, 0), (0, room - rows.shape[1]))).reshape(len(rows), -1, BLOCK)
    parts = []
    for _ in range(2):
        blocks = np.zeros(left.shape[:2], _Q8_0_BLOCK)
        blocks["scale"] = np.abs(left).max(axis=2) / _LARGEST
        scales = blocks["scale"].astype(np.float32)[..., np.newaxis]
        quants = np.divide(left, scales, out=np.zeros_like(left), where=scales > 0)
        blocks["quants"] = np.rint(quants).clip(-_LARGEST, _LARGEST)
        left = left - scales * blocks["quants"]
        parts.append(blocks)
    return np.concatenate(parts, axis=1).tobytes()


@lru_cache(64)
def block_sums(width: int) -> bytes:
    """A Q4_0 matrix that gives the sum of each block of a row of this width, for each of the two."""
    count = width // BLOCK
    blocks = np.empty((2, _padded(count), count), _Q4_0_BLOCK)
    blocks["scale"], blocks["quants"] = 1.0, ZEROS
    blocks["quants"][:, range(count), range(count)] = ONES
    return blocks.tobytes()


def _write(header: GgufHeader, data: Iterable[bytes], target: str) -> None:
    """A file of a header and its tensors, each where the header says."""
    head = header.to_bytes()
    with Path(target).open("r+b", buffering=0) as sink:
        sink.write(head)
        for tensor, each in zip(header.tensors(), data, strict=True):
            os.pwrite(sink.fileno(), each, len(head) + tensor.offset)


@contextmanager
def _memory_file(name: str) -> Iterator[str]:
    """The path of a file that lies in memory, and goes when it was read."""
    number = os.memfd_create(name)
    try:
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


_logger = logging.getLogger("ganglion.engines")


def load_planned(library: Library, plan: EnginePlan) -> NativeModel:
    """Load the model of a plan; raises LoadFailed."""
    if plan.gpu_layers and not library.lib.llama_supports_gpu_offload():
        _logger.warning(
            "%d layers are configured for a GPU, but this llama.cpp knows none: all run on the processor."
            " docs/gpu.md says how to build one that does.",
            plan.gpu_layers,
        )
    if plan.is_repacked:
        return load_repacked(library, plan.path)
    return load_model(
        library,
        plan.path,
        gpu_layers=plan.gpu_layers,
        gpu_split=plan.gpu_split,
        gpu_main=plan.gpu_main,
    )
