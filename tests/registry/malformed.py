"""Files that were damaged, and what reading them may cost."""

import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ganglion.core.errors import GanglionError
from ganglion.core.model import ModelFacts

TIME_LIMIT_S = 0.1
MEMORY_LIMIT_BYTES = 64 << 20


def mutants(content: bytes, count: int) -> Iterator[bytes]:
    """Truncations, flipped bits and huge counts, the same ones every time."""
    chance = random.Random(20)
    for number in range(count):
        mutant = bytearray(content)
        match number % 3:
            case 0:
                del mutant[chance.randrange(len(mutant)) :]
            case 1:
                for _ in range(chance.randint(1, 8)):
                    mutant[chance.randrange(len(mutant))] ^= 1 << chance.randrange(8)
            case _:
                at = chance.randrange(len(mutant) - 8)
                mutant[at : at + 8] = struct.pack("<Q", chance.choice([2**64 - 1, 2**40, 2**31, 2**20, 0]))
        yield bytes(mutant)


def read_all(
    file: Path, contents: Iterator[bytes], read: Callable[[], ModelFacts], *, is_traced: bool = True
) -> None:
    """Every content is read or refused with a typed error, soon and in little memory.

    Tracing makes long headers slow, and would measure itself.
    """
    slowest_s = 0.0
    with measured_memory() if is_traced else nullcontext(lambda: 0) as peak_bytes:
        for content in contents:
            file.write_bytes(content)
            began_s = time.process_time()
            try:
                assert isinstance(read(), ModelFacts)
            except GanglionError as error:
                assert error.message
            slowest_s = max(slowest_s, time.process_time() - began_s)
        assert peak_bytes() < MEMORY_LIMIT_BYTES
    assert slowest_s < TIME_LIMIT_S


@contextmanager
def measured_memory() -> Iterator[Callable[[], int]]:
    """Measure the most memory that is held inside, in bytes."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
