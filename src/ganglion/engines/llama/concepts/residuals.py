"""The residual stream of many short texts, read in a process that may die of a bad file."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed, class_of, rebuild
from ganglion.engines.child import read_exactly
from ganglion.engines.llama.concepts.residual_frames import (
    LENGTH_BYTES,
    Pool,
    ReadResiduals,
    Residual,
    ResidualFrame,
    ResidualsOpened,
    ResidualsRefusal,
    residual_frame,
)
from ganglion.engines.resources import usable_cores

CHILD: Final = "ganglion.engines.llama.concepts.residuals_child"
LOAD_S: Final = 600.0
TEXT_S: Final = 300.0
"""For one text of at most 512 tokens: a large model on a slow machine."""
Floats = npt.NDArray[np.float32]
Report = Callable[[int, int], None]
"""Told after each text how many were read and how many there are."""


@dataclass(frozen=True, slots=True)
class ResidualModel:
    """What the file says of the stream."""

    architecture: str
    hidden_size: int
    block_count: int


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """What was read."""

    model: ResidualModel
    layers: tuple[int, ...]
    values: Floats
    """`[texts, layers, hidden]`."""
    tokens: int
    """Of all texts together."""
    cut: int
    """How many texts were longer than what is read of one."""


def read_residuals(
    path: Path,
    texts: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    pool: Pool = "mean",
    threads: int | None = None,
    gpu_layers: int = 0,
    report: Report = lambda done, total: None,
) -> Residuals:
    """Read the stream after some layers, or after all but the last; raises what is wrong with the model.

    Of a text it is the mean over its tokens, or what its last token has.
    """
    wanted = None if layers is None else list(layers)
    ask = ReadResiduals(str(path), list(texts), wanted, pool, threads or usable_cores(), gpu_layers)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the library talks there, and what matters comes as a frame
    )
    assert child.stdin is not None and child.stdout is not None
    # In a thread of its own: a child that dies or answers before it has read everything must not block us.
    writer = threading.Thread(target=_send, args=(child.stdin, residual_frame(ask)))
    writer.start()
    try:
        return _answer(child, child.stdout, len(ask.texts), report)
    finally:
        child.kill()
        child.wait()
        writer.join()
        child.stdout.close()


def _send(stream: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), stream:
        stream.write(data)


def _answer(child: subprocess.Popen[bytes], stream: IO[bytes], count: int, report: Report) -> Residuals:
    opened = _next(child, stream, LOAD_S)
    if not isinstance(opened, ResidualsOpened):
        raise EngineFailed("The process that reads residuals spoke out of turn.")
    shape = len(opened.layers), opened.hidden_size
    values = np.empty((count, *shape), np.float32)
    tokens = cut = 0
    report(0, count)
    for place in range(count):
        read = _next(child, stream, TEXT_S)
        if not isinstance(read, Residual) or len(read.values) != values[place].nbytes:
            raise EngineFailed("The process that reads residuals spoke out of turn.")
        values[place] = np.frombuffer(read.values, np.float32).reshape(shape)
        tokens, cut = tokens + read.tokens, cut + read.is_cut
        report(place + 1, count)
    model = ResidualModel(opened.architecture, opened.hidden_size, opened.block_count)
    return Residuals(model, tuple(opened.layers), values, tokens, cut)


def _next(child: subprocess.Popen[bytes], stream: IO[bytes], timeout_s: float) -> ResidualFrame:
    """The next frame; raises what the child refuses, or how it died."""
    until_s = monotonic() + timeout_s
    try:
        length = int.from_bytes(read_exactly(stream, LENGTH_BYTES, until_s), "big")
        frame: ResidualFrame = msgspec.msgpack.decode(
            read_exactly(stream, length, until_s), type=ResidualFrame
        )
    except TimeoutError:
        raise EngineFailed(f"The model took more than {timeout_s:g} s for one text.") from None
    except (EOFError, msgspec.MsgspecError):
        raise EngineFailed(
            f"The process that read the model ended with {_ending(child.wait())}.",
            hint="ganglion models verify says whether the file is undamaged.",
        ) from None
    if isinstance(frame, ResidualsRefusal):
        raise rebuild(class_of(frame.code) or EngineFailed, frame.message, hint=frame.hint)
    return frame


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
