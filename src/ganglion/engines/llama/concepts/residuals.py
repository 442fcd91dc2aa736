"""Reads the residual stream of many short texts, in a process that may die of a bad file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ganglion.core.errors import EngineFailed, class_of, rebuild
from ganglion.engines.child import Child, ChildDied, ChildLimits, describe_exit, spawn
from ganglion.engines.llama.concepts.residual_frames import (
    Pool,
    ReadResiduals,
    Residual,
    ResidualFrame,
    ResidualsOpened,
    ResidualsRefusal,
)
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.resources import usable_cores

CHILD: Final = "ganglion.engines.llama.concepts.residuals_child"
_LIMITS: Final = ChildLimits(wall_s=600.0, has_environment=True)
"""The first answer comes when the model is loaded; which library loads it, the environment says."""
_TEXT_S: Final = 300.0
"""For one text of at most 512 tokens: a large model on a slow machine."""
_OUT_OF_TURN: Final = "The process that reads residuals answered out of turn."

_Report = Callable[[int, int], None]
"""Called after each text with how many were read and how many there are."""


@dataclass(frozen=True, slots=True)
class _ResidualModel:
    """What the file says of the stream."""

    architecture: str
    hidden_size: int
    block_count: int


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """What was read."""

    model: _ResidualModel
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
    report: _Report = lambda done, total: None,
) -> Residuals:
    """Read the stream after some layers, or after all but the last; raises what is wrong with the model.

    Of a text it is the mean over its tokens, or what its last token has.
    """
    named = None if layers is None else list(layers)
    ask = ReadResiduals(str(path), list(texts), named, pool, threads or usable_cores(), gpu_layers)
    child = None
    try:
        child = spawn(CHILD, limits=_LIMITS)
        return _answer(child, ask, report)
    except TimeoutError:
        raise EngineFailed("The model took too long for one text.") from None
    except ChildDied as death:
        raise EngineFailed(
            f"The process that read the model {describe_exit(death.code)}.",
            hint="ganglion models verify says whether the file is undamaged.",
        ) from None
    finally:
        if child is not None:
            child.close()


def _answer(child: Child, ask: ReadResiduals, report: _Report) -> Residuals:
    count = len(ask.texts)
    opened = _decoded(child.ask(msgspec.msgpack.encode(ask)))
    if not isinstance(opened, ResidualsOpened):
        raise EngineFailed(_OUT_OF_TURN)
    shape = len(opened.layers), opened.hidden_size
    values = np.empty((count, *shape), np.float32)
    tokens = cut = 0
    report(0, count)
    for number in range(count):
        read = _decoded(child.receive(_TEXT_S))
        if not isinstance(read, Residual) or len(read.values) != values[number].nbytes:
            raise EngineFailed(_OUT_OF_TURN)
        values[number] = np.frombuffer(read.values, np.float32).reshape(shape)
        tokens, cut = tokens + read.tokens, cut + read.is_cut
        report(number + 1, count)
    model = _ResidualModel(opened.architecture, opened.hidden_size, opened.block_count)
    return Residuals(model, tuple(opened.layers), values, tokens, cut)


def _decoded(body: bytes) -> ResidualFrame:
    """A frame; raises what the child refuses."""
    try:
        frame: ResidualFrame = msgspec.msgpack.decode(body, type=ResidualFrame)
    except msgspec.MsgspecError as error:
        raise EngineFailed(_OUT_OF_TURN) from error
    if isinstance(frame, ResidualsRefusal):
        raise rebuild(class_of(frame.code) or EngineFailed, frame.message, hint=frame.hint)
    return frame
