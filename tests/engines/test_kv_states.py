"""KV leaves one worker as bytes and goes on in another; bytes that are not its own it never believes."""

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from ganglion.core.events import Finished, Pieces
from ganglion.core.request import Stop, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.kv.state_format import (
    FORMAT,
    HEAD_PREFIX,
    KvStateHeader,
    are_sound,
    first_cells,
    kv_fingerprint,
    shape_of,
)
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.ipc import MAX_STATE_BYTES
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.embedded_model import kept_open

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
TEXT = "Nora found a brass compass in her grandmother's attic. On Mondays it pointed to the harbour. "
COUNTING = " " + ", ".join(map(str, range(100, 124)))


@asynccontextmanager
async def opened(**settings: object) -> AsyncIterator[LlamaEngine]:
    assert found is not None
    asked = {"context": 1024, "kv_tokens": 4096} | settings
    subject = LlamaEngine(read_facts(found.path), EngineSettings("m", **asked))  # type: ignore[arg-type]
    async with kept_open(subject):
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def first() -> AsyncIterator[LlamaEngine]:
    """All in one context that is shared."""
    async with opened(kv_tokens=1536) as subject:
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second() -> AsyncIterator[LlamaEngine]:
    """Short ones in slots of their own."""
    async with opened() as subject:
        yield subject


async def prompt(engine: LlamaEngine, text: str, count: int) -> tuple[int, ...]:
    tokens = await engine.tokens.tokenize(text + TEXT * 12, add_special=True, parse_special=False)
    return tokens[:count]


def asked(tokens: tuple[int, ...], count: int, salt: str) -> TokenRequest:
    greedy = ResolvedSampling(temperature=0.0)
    stop = Stop(ignore_eos=True)
    return TokenRequest("r", tokens, count, sampling=greedy, stop=stop, salt=salt, in_tokens=True)


async def run(
    engine: LlamaEngine, tokens: tuple[int, ...], count: int, salt: str
) -> tuple[tuple[int, ...], int]:
    """What follows, and how many tokens of the prompt were cached."""
    events = [event async for event in engine.tokens.run(asked(tokens, count, salt))]
    assert isinstance(events[-1], Finished), events[-1]
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    return tuple(token.id for piece in pieces for token in piece.tokens), events[-1].usage.cached_tokens


@pytest.mark.model
@pytest.mark.parametrize("goes_back", [False, True])
async def test_a_state_goes_on_in_another_worker_as_if_it_had_been_there(
    first: LlamaEngine, second: LlamaEngine, *, goes_back: bool
) -> None:
    source, target = (second, first) if goes_back else (first, second)
    salt = f"{goes_back}"
    # Counting leaves no doubt about what follows, however the rows of two contexts are summed.
    tokens = await source.tokens.tokenize(salt + COUNTING, add_special=True, parse_special=False)
    answer, _ = await run(source, tokens, 8, salt)
    whole = (*tokens, *answer)
    state = await source.save_kv("m", salt, whole)
    length = len(whole) - 1
    assert await target.load_kv("m", "other", whole, b"") == 0
    assert await target.load_kv("m", salt, whole, state) == length
    assert await target.load_kv("m", salt, whole, state) == length, "once more changes nothing"
    assert await target.save_kv("m", salt, whole) == state, "bit for bit"
    stayed = await run(source, whole, 8, salt)
    assert stayed[1] == length
    assert await run(target, whole, 8, salt) == stayed
    assert (await run(target, whole, 1, "other"))[1] == 0, "another tenant finds nothing"


@pytest.mark.model
async def test_what_is_saved_is_cut_to_what_the_tokens_share_and_is_only_its_owners(
    first: LlamaEngine, second: LlamaEngine
) -> None:
    tokens = await prompt(first, "cut", 120)
    await run(first, tokens, 4, "a")
    fork = (*tokens[:50], 7, 8, 9, *tokens[:20])
    state = await first.save_kv("m", "a", fork)
    assert await second.load_kv("m", "a", fork, state) == 50
    assert await second.load_kv("m", "a", tokens[:49], state) == 0, "it is of more tokens than these"
    assert await second.load_kv("m", "a", tokens[1:], state) == 0, "it is of other tokens"
    assert (await run(second, fork, 4, "a"))[1] == 50
    assert await first.save_kv("m", "b", tokens) == b""
    assert await first.save_kv("m", "a", tokens[:15]) == b"", "too short to be cached"
    assert await second.load_kv("m", "a", fork, bytes(MAX_STATE_BYTES + 1)) == 0


@pytest.mark.model
async def test_states_leave_and_come_while_neighbours_read_and_decode_and_the_pool_is_full(
    second: LlamaEngine,
) -> None:
    async with opened(kv_tokens=1024, parallel=4) as subject:
        tokens = await prompt(subject, "kept", 120)
        expected, _ = await run(subject, tokens, 8, "t")
        others = [await prompt(subject, f"{number}: ", 60 + 300 * (number == 3)) for number in range(6)]
        busy = [asyncio.create_task(run(subject, other, 16, "t")) for other in others]
        whole = (*tokens, *expected)
        states = []
        while not all(task.done() for task in busy):
            states.append(await subject.save_kv("m", "t", whole))
            states.append(await subject.save_kv("m", "t", others[3]))
            assert await subject.load_kv("m", "u", whole, states[0]) == len(whole) - 1
            await asyncio.sleep(0.05)
        assert all(answer for answer, _ in await asyncio.gather(*busy))
    assert states[0], "it was cached when the first was saved"
    assert {await second.load_kv("m", "v", whole, state) for state in states[::2] if state} == {
        len(whole) - 1
    }
    assert (await run(second, tokens, 8, "v"))[0] == expected


@pytest.mark.model
async def test_a_running_sequence_is_saved_as_far_as_it_is_and_runs_on(
    first: LlamaEngine, second: LlamaEngine
) -> None:
    tokens = await prompt(first, "running", 80)
    seen: list[int] = []
    lengths: list[int] = []
    async with aclosing(first.tokens.run(asked(tokens, 12, "t"))) as events:
        async for event in events:
            if isinstance(event, Pieces):
                seen += [token.id for piece in event.pieces for token in piece.tokens]
                state = await first.save_kv("m", "t", (*tokens, *seen))
                lengths.append(await second.load_kv("m", "t", (*tokens, *seen), state))
    assert lengths[0] >= 80
    assert lengths[-1] > lengths[0]
    assert len(seen) == 12
    again, cached = await run(second, tokens, 12, "t")
    assert (again, cached) == (tuple(seen), 79)


@pytest.mark.model
async def test_a_deterministic_worker_hands_out_nothing_and_takes_nothing(first: LlamaEngine) -> None:
    tokens = await prompt(first, "exact", 60)
    await run(first, tokens, 1, "t")
    state = await first.save_kv("m", "t", tokens)
    assert state
    async with opened(is_deterministic=True) as subject:
        await run(subject, tokens, 1, "t")
        assert await subject.save_kv("m", "t", tokens) == b""
        assert await subject.load_kv("m", "t", tokens, state) == 0


@dataclass(frozen=True)
class Parts:
    """A state taken apart, so that it can be put together wrong."""

    header: KvStateHeader
    cells: bytes

    def joined(self, **changes: object) -> bytes:
        """With its checksums right, whatever else was changed."""
        cells = changes.pop("cells", self.cells)
        assert isinstance(cells, bytes)
        fixed = {"size_bytes": len(cells), "checksum": blake2b(cells, digest_size=32).digest()}
        header = msgspec.msgpack.encode(msgspec.structs.replace(self.header, **(fixed | changes)))
        checksum = blake2b(header, digest_size=32).digest()
        return HEAD_PREFIX.pack(FORMAT, len(header), checksum) + header + cells


def taken_apart(state: bytes) -> Parts:
    length = HEAD_PREFIX.unpack_from(state)[1]
    header = msgspec.msgpack.decode(state[HEAD_PREFIX.size : HEAD_PREFIX.size + length], type=KvStateHeader)
    return Parts(header, state[HEAD_PREFIX.size + length :])


def mutants(state: bytes, count: int) -> list[bytes]:
    """Flipped bits, cuts, wrong counts, words of all ones; half of them with checksums that are right."""
    dice = random.Random(5)
    parts = taken_apart(state)
    assert parts.joined() == state
    head = len(parts.header.tokens) // 4 * 12 + 64
    found = []
    for number in range(count):
        source = parts.cells if number % 2 else state
        data = bytearray(source)
        kind = number // 2 % 5
        at = dice.randrange(head if dice.random() < 0.7 else len(data))
        if kind == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            struct.pack_into("<I", data, at // 4 * 4, dice.choice([0, 1, 2**31, 2**32 - 1, at]))
        elif kind == 3:
            data[at:at] = dice.randbytes(dice.choice([1, 4, 12]))
        else:
            struct.pack_into("<I", data, 0, dice.choice([0, 1, 15, 47, 49, 2**31 - 1, 2**32 - 1]))
        found.append(parts.joined(cells=bytes(data)) if number % 2 else bytes(data))
    header = parts.header
    found += [
        parts.joined(magic=header.magic ^ 1),
        parts.joined(magic=2**63),
        parts.joined(magic=-1),
        parts.joined(fingerprint=b"another"),
        parts.joined(tokens=header.tokens[:-4]),
        parts.joined(tokens=b""),
        parts.joined(size_bytes=2**62),
        parts.joined(cells=b""),
        HEAD_PREFIX.pack(FORMAT, 2**32 - 1, bytes(32)),
        state[: HEAD_PREFIX.size],
    ]
    return found


@pytest.mark.model
async def test_hostile_bytes_are_not_believed_and_leave_the_worker_as_it_was(
    first: LlamaEngine, second: LlamaEngine
) -> None:
    tokens = await prompt(first, "hostile", 49)
    expected, _ = await run(first, tokens, 8, "h")
    state = await first.save_kv("m", "h", tokens[:48])
    alive = second.models()[0].restarts
    believed = 0
    for number, mutant in enumerate(mutants(state, 500)):
        salt = f"h{number}"
        length = await second.load_kv("m", salt, tokens, mutant)
        assert length in (0, 48)
        if length:
            believed += 1
            answer, cached = await run(second, tokens, 2, salt)
            assert (len(answer), cached) == (2, 48), "other numbers in its cells, and still numbers"
    assert 0 < believed < 60
    assert await second.load_kv("m", "h", tokens, state) == 48
    assert await run(second, tokens, 8, "h") == (expected, 48)
    assert second.models()[0].restarts == alive


async def test_cells_are_cut_by_position_and_judged_by_shape_and_content() -> None:
    rng = np.random.default_rng(1)
    order = [2, 0, 1, 3]
    rows = rng.normal(size=(2, 4, 6)).astype("<f2")
    cells = _cells(order, rows)
    shape = shape_of(memoryview(cells))
    assert shape is not None
    cut = first_cells(memoryview(cells), 3)
    assert cut == _cells([0, 1, 2], rows[:, [1, 2, 0]], slot=0)
    assert are_sound(memoryview(cut), 3, shape)
    assert first_cells(memoryview(_cells([0, 1, 3, 4], rows)), 3) is None, "a position is missing"
    assert first_cells(memoryview(cells), 5) is None
    for wrong in (np.inf, np.nan):
        bad = rows.copy()
        bad[1, 2, 3] = wrong
        assert not are_sound(memoryview(_cells([0, 1, 2, 3], bad, slot=0)), 4, shape)
    assert are_sound(memoryview(_cells([0, 1, 2, 3], rows, slot=0)), 4, shape)
    assert not are_sound(memoryview(_cells([0, 1, 3, 2], rows, slot=0)), 4, shape)
    assert not are_sound(memoryview(_cells([0, 1, 2, 3], rows, slot=1)), 4, shape)
    assert shape_of(memoryview(_cells(order, rows, is_transposed=1))) is None
    assert shape_of(memoryview(cells)[:-1]) is None


def _cells(positions: list[int], rows: np.ndarray, *, slot: int = 5, is_transposed: int = 0) -> bytes:
    heads = b"".join(struct.pack("<iIi", position, 1, slot) for position in positions)
    blocks = b"".join(struct.pack("<iQ", 1, 12) + block.tobytes() for block in rows)
    return struct.pack("<I", len(positions)) + heads + struct.pack("<IIII", is_transposed, 1, 0, 0) + blocks


async def test_a_portable_stamp_is_the_same_wherever_the_same_files_lie(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        for name in ("model.gguf", "library.so"):
            (tmp_path / folder / name).write_bytes(name.encode() * 1000)
    os.utime(tmp_path / "there" / "model.gguf", ns=(1, 1))

    def stamp(folder: str, **more: bool) -> bytes:
        return kv_fingerprint(
            tmp_path / folder / "model.gguf", tmp_path / folder / "library.so", "f16", 0, **more
        )

    assert stamp("here", is_portable=True) == stamp("there", is_portable=True)
    assert stamp("here") != stamp("there")
    (tmp_path / "there" / "model.gguf").write_bytes(b"x" + b"model.gguf" * 999 + b"model.guf")
    assert stamp("here", is_portable=True) != stamp("there", is_portable=True)
