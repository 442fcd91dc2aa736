"""Fetches what vLLM's processes have read out, for everybody who waits in one question.

Law: one question is under way at a time. Each process holds some of the layers; a position is handed on when
all of them are there. What nobody takes any more is forgotten there as well.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import EngineFailed, LoadFailed
from ganglion.engines.concepts.pack import ConceptBook
from ganglion.engines.supervision.ipc import Submit
from ganglion.engines.vllm.worker.step_rows import ResidualWishes
from ganglion.scheduler.spans import Spans, clipped, merged

CallAll = Callable[[str, tuple[Any, ...]], Awaitable[list[Any]]]
"""Calls a method of `ResidualExtension` in every process, and returns what each says."""
_Values = npt.NDArray[np.float32]


class ReadoutExchange:
    """The concepts of one engine, once its processes have them."""

    def __init__(
        self, call: CallAll, manifest: ReadoutManifest, layers: list[list[int]], context: int
    ) -> None:
        """`layers` are those that each process computes."""
        self.manifest = manifest
        self._call = call
        self._context = context
        self._places = [[manifest.layers.index(layer) for layer in each] for each in layers]
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._followers: dict[int, ReadoutFollower] = {}
        self._forgotten: list[int] = []
        self._asking: asyncio.Task[None] | None = None

    def follow(self, submit: Submit) -> "ReadoutFollower | None":
        """Whoever fetches a request's readouts; None for one that asks nothing of the residual stream."""
        if not submit.readout_ranges and not submit.steering:
            return None
        return self.follow_spans(merged(submit.readout_ranges, self._context), submit)

    def follow_spans(self, spans: Spans, submit: Submit) -> "ReadoutFollower":
        """The same for some positions of another request that is steered alike."""
        follower = ReadoutFollower(self, next(self._numbers), spans, submit)
        self._followers[follower.key] = follower
        return follower

    async def fetch(self, key: int) -> None:
        """Have what was read for a request brought to its follower."""
        future = self._waiting.get(key)
        if future is None or future.done():
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
        self._ask_soon()
        await future

    def forget(self, key: int) -> None:
        """Nobody waits for a request's readouts any more."""
        del self._followers[key]
        self._waiting.pop(key, None)
        self._forgotten.append(key)
        self._ask_soon()

    def _ask_soon(self) -> None:
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="readouts")

    async def _ask(self) -> None:
        try:
            while self._waiting or self._forgotten:
                waiting, self._waiting = self._waiting, {}
                forgotten, self._forgotten = self._forgotten, []
                try:
                    answers = await self._call("ganglion_take_readouts", (list(waiting), forgotten))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where somebody waits
                    _fail(waiting.values(), error)
                    continue
                for place, by_key in zip(self._places, answers, strict=True):
                    for key, spans in zip(waiting, by_key, strict=True):
                        if key in self._followers:
                            self._followers[key].receive(place, spans)
                for future in waiting.values():
                    if not future.done():
                        future.set_result(None)
        finally:
            self._asking = None


def _fail(futures: Any, error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(EngineFailed(f"The readouts could not be fetched: {error}"))


class ReadoutFollower:
    """Fetches the readouts of one request, position by position."""

    def __init__(self, exchange: ReadoutExchange, key: int, spans: Spans, submit: Submit) -> None:
        self.key = key
        self.spans = spans
        """The positions that are wanted."""
        self._exchange = exchange
        self._steering = submit.steering
        self._found: dict[int, _Values] = {}
        self._places_of: dict[int, set[int]] = {}
        """The places among the layers at which a position was read already."""
        self._done = 0
        """Where the next positions begin; what is computed once more before them was handed on already."""

    def arguments(self) -> dict[str, Any]:
        """What tells the processes of it: the extra arguments of its sampling."""
        return ResidualWishes(self.key, self.spans).as_argument(self._steering)

    def needs_whole_prompt(self, prompt_tokens: int) -> bool:
        """Whether a position is wanted that a cached prefix could spare; the last one is always computed."""
        return bool(clipped(self.spans, 0, prompt_tokens - 1))

    async def until(self, end: int) -> dict[int, bytes]:
        """The readouts of the next wanted positions, up to `end`, before which all have been computed.

        Raises EngineFailed where one is missing or no number.
        """
        wanted = [at for low, high in clipped(self.spans, self._done, end) for at in range(low, high)]
        missing = len(wanted)
        while missing:
            await self._exchange.fetch(self.key)
            still = sum(not self._is_whole(at) for at in wanted)
            if still == missing and still:
                raise EngineFailed(f"The readout of position {wanted[-still]} was not computed.")
            missing = still
        self._done = end
        return {at: self._taken(at) for at in wanted}

    def receive(self, places: list[int], spans: list[tuple[int, int, bytes]]) -> None:
        """Take in what one process read, at its places among the layers."""
        manifest = self._exchange.manifest
        for first, rows, data in spans:
            values = np.frombuffer(data, np.float32).reshape(rows, len(places), len(manifest.concepts))
            for row in range(max(self._done - first, 0), rows):
                self._place(first + row, places, values[row])

    def close(self) -> None:
        """Nothing more is wanted; the request itself has been left out by now."""
        self._exchange.forget(self.key)

    def _place(self, position: int, places: list[int], values: _Values) -> None:
        manifest = self._exchange.manifest
        found = self._found.get(position)
        if found is None:
            found = np.empty((len(manifest.layers), len(manifest.concepts)), np.float32)
            self._found[position] = found
            self._places_of[position] = set()
        found[places] = values
        self._places_of[position].update(places)

    def _is_whole(self, position: int) -> bool:
        return len(self._places_of.get(position, ())) == len(self._exchange.manifest.layers)

    def _taken(self, position: int) -> bytes:
        del self._places_of[position]
        values = self._found.pop(position)
        if not np.isfinite(values).all():
            raise EngineFailed("The model's residual stream is not a number; it cannot be read out.")
        return values.tobytes()


async def load_concepts(call: CallAll, book: ConceptBook, context: int) -> ReadoutExchange:
    """Bring the concepts to every process; raises LoadFailed where a model's layers cannot be reached."""
    arguments = (
        list(book.manifest.concepts),
        list(book.manifest.layers),
        [np.ascontiguousarray(each, np.float32).tobytes() for each in book.vectors],
        [each.tolist() for each in book.spans],
        int(book.vectors[0].shape[1]),
    )
    answers = await call("ganglion_load_concepts", arguments)
    reasons = [reason for _, reason in answers if reason]
    if reasons:
        raise LoadFailed(
            f"Concepts cannot be read out of this model: {reasons[0]}.", hint="Load it without concept packs."
        )
    return ReadoutExchange(call, book.manifest, [layers for layers, _ in answers], context)
