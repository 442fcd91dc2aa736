"""Readouts on their way out of vLLM's processes: whole, in order, once, and beside their tokens."""

import asyncio
from typing import Any

import numpy as np
import pytest

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import EngineFailed
from ganglion.core.request import Stop
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.supervision.ipc import PieceRecord, SequenceEnd, SequenceUpdate, Submit, TokenRecord
from ganglion.engines.vllm.worker.readout_exchange import ReadoutExchange, ReadoutFollower
from ganglion.engines.vllm.worker.readout_stream import ReadoutStream

MANIFEST = ReadoutManifest(("a", "b"), (3, 9, 20))
PROMPT = [5, 6, 7, 8]


class Processes:
    """Two processes that compute some of the layers each; what they have read is put here by the test."""

    def __init__(self) -> None:
        self.read: list[dict[int, list[tuple[int, int, bytes]]]] = [{}, {}]
        self.layers = [[3, 9], [20]]
        self.calls: list[tuple[list[int], list[int]]] = []
        self.is_down = False

    async def call(self, method: str, arguments: tuple[Any, ...]) -> list[Any]:
        await asyncio.sleep(0)
        if self.is_down:
            raise RuntimeError("the engine is gone")
        assert method == "ganglion_take_readouts"
        keys, forgotten = arguments
        self.calls.append((list(keys), list(forgotten)))
        for each in self.read:
            for key in forgotten:
                each.pop(key, None)
        return [[each.pop(key, []) for key in keys] for each in self.read]

    def compute(self, key: int, first: int, count: int, *, process: int | None = None) -> None:
        for number, layers in enumerate(self.layers):
            if process in (None, number):
                rows = values_of(first, count)[:, [MANIFEST.layers.index(layer) for layer in layers]]
                self.read[number].setdefault(key, []).append((first, count, rows.tobytes()))


def values_of(first: int, count: int) -> np.ndarray:
    """Position 7 reads 700 to 705, whatever else there is."""
    rows = [np.arange(6, dtype=np.float32).reshape(3, 2) + 100 * at for at in range(first, first + count)]
    return np.stack(rows)


def submit(*ranges: tuple[int, int | None], steered: bool = False) -> Submit:
    return Submit(
        1,
        PROMPT,
        8,
        ResolvedSampling(temperature=0.0),
        Stop(),
        None,
        0,
        "",
        readout_ranges=list(ranges),
        steering=[("a", 1.0, None)] if steered else [],
    )


def opened() -> tuple[Processes, ReadoutExchange]:
    processes = Processes()
    return processes, ReadoutExchange(processes.call, MANIFEST, processes.layers, 64)


def follower_of(exchange: ReadoutExchange, *ranges: tuple[int, int | None]) -> ReadoutFollower:
    found = exchange.follow(submit(*ranges))
    assert found is not None
    return found


async def test_a_position_is_handed_on_when_all_layers_are_there_and_only_once() -> None:
    processes, exchange = opened()
    follower = follower_of(exchange, (1, 3), (5, None))
    processes.compute(follower.key, 1, 2)
    assert await follower.until(4) == {at: values_of(at, 1).tobytes() for at in (1, 2)}
    processes.compute(follower.key, 1, 2)  # computed once more, after the request had lost its place
    processes.compute(follower.key, 5, 1, process=0)
    processes.compute(follower.key, 5, 1, process=0)
    with pytest.raises(EngineFailed, match="position 5"):
        await follower.until(6)
    processes.compute(follower.key, 5, 1, process=1)
    assert await follower.until(6) == {5: values_of(5, 1).tobytes()}
    assert await follower.until(6) == {}


async def test_requests_that_ask_for_nothing_ask_nobody() -> None:
    processes, exchange = opened()
    assert exchange.follow(submit()) is None
    steered = exchange.follow(submit(steered=True))
    assert steered is not None and await steered.until(100) == {}
    assert not processes.calls


async def test_all_who_wait_are_asked_for_in_one_question_and_forgotten_when_they_leave() -> None:
    processes, exchange = opened()
    followers = [follower_of(exchange, (0, None)) for _ in range(8)]
    for each in followers:
        processes.compute(each.key, 0, 4)
    await asyncio.gather(*(each.until(4) for each in followers))
    assert len(processes.calls) <= 2
    left = asyncio.create_task(followers[0].until(5))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    for each in followers:
        processes.compute(each.key, 4, 1)
        each.close()
    await asyncio.sleep(0.01)
    assert processes.read == [{}, {}]


async def test_what_is_no_number_or_cannot_be_fetched_fails_whoever_wants_it() -> None:
    processes, exchange = opened()
    follower = follower_of(exchange, (0, None))
    processes.read[0][follower.key] = [(0, 1, np.full((1, 2, 2), np.nan, np.float32).tobytes())]
    processes.read[1][follower.key] = [(0, 1, np.zeros((1, 1, 2), np.float32).tobytes())]
    with pytest.raises(EngineFailed, match="not a number"):
        await follower.until(1)
    processes.is_down = True
    with pytest.raises(EngineFailed, match="the engine is gone"):
        await follower.until(2)


def test_a_cached_prefix_is_not_read_where_it_holds_a_wanted_position() -> None:
    _, exchange = opened()
    assert follower_of(exchange, (2, 3)).needs_whole_prompt(4)
    assert not follower_of(exchange, (3, None)).needs_whole_prompt(4)
    assert not follower_of(exchange, (4, None)).needs_whole_prompt(4)


def pieces(*positions: int) -> list[PieceRecord]:
    return [PieceRecord("x", False, [TokenRecord(at, b"x", at) for at in positions])]


END = SequenceEnd("length", 3, None, 0.0, 0.0, 0.0)


async def test_a_token_is_told_once_it_has_run_and_the_last_one_is_run_for_it() -> None:
    processes, exchange = opened()
    follower = follower_of(exchange, (2, None))
    ran: list[list[int]] = []

    async def run_last(tokens: list[int]) -> bytes:
        ran.append(tokens)
        return values_of(6, 1).tobytes()

    stream = ReadoutStream(submit((2, None)), follower, lambda token: b"%d" % token, run_last)
    processes.compute(follower.key, 2, 2)
    scored = [TokenRecord(at + 5, b"", at, -1.0) for at in (1, 2)]
    first = await stream.complete(SequenceUpdate(1, (4, 0), None, scored, pieces(4)), [40])
    assert [(each.started, [record.position for record in each.scored]) for each in first] == [
        ((4, 0), [1, 2, 3])
    ]
    assert [bool(record.readout) for record in first[0].scored] == [False, True, True]
    assert [record.logprob for record in first[0].scored] == [-1.0, -1.0, None]
    processes.compute(follower.key, 4, 1)
    [second] = await stream.complete(SequenceUpdate(1, pieces=pieces(5)), [40, 41])
    assert [token.readout for piece in second.pieces for token in piece.tokens] == [values_of(4, 1).tobytes()]
    processes.compute(follower.key, 5, 1)
    [third] = await stream.complete(SequenceUpdate(1, pieces=pieces(6), end=END), [40, 41, 42])
    assert [token.position for piece in third.pieces for token in piece.tokens] == [5, 6]
    assert [token.readout for piece in third.pieces for token in piece.tokens] == [
        values_of(at, 1).tobytes() for at in (5, 6)
    ]
    assert third.end == END
    assert ran == [[*PROMPT, 40, 41, 42]]


async def test_the_last_token_is_not_run_where_nobody_is_told_of_it() -> None:
    processes, exchange = opened()
    follower = follower_of(exchange, (4, 5))

    async def run_last(_: list[int]) -> bytes:
        raise AssertionError

    stream = ReadoutStream(submit((4, 5)), follower, bytes, run_last)
    assert await stream.complete(SequenceUpdate(1, (4, 0), None, [], pieces(4)), [40]) == [
        SequenceUpdate(1, (4, 0))
    ]
    processes.compute(follower.key, 4, 1)
    [ended] = await stream.complete(SequenceUpdate(1, end=END), [40, 2])
    assert [token.position for piece in ended.pieces for token in piece.tokens] == [4]
