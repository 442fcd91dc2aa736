"""Bytes out of a child's pipe, as many as are expected and no later than they must come."""

import os
import select
from time import monotonic
from typing import IO


def read_exactly(stream: IO[bytes], size: int, until_s: float) -> bytes:
    """So many bytes; raises EOFError at the end of the stream, TimeoutError at that of the time."""
    data = bytearray()
    while len(data) < size:
        left_s = until_s - monotonic()
        if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
            raise TimeoutError
        more = os.read(stream.fileno(), size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
