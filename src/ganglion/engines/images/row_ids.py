"""The ids of a picture's rows in a worker's token lists, where its tokens' ids are 0 and above."""

import hashlib
from array import array
from typing import Final

_ROW_IDS: Final = 2**30


def row_ids(picture: str, rows: int) -> list[int]:
    """Ids below -1: the same for the same picture anywhere, and for each row of each picture another."""
    numbers = array("I", hashlib.shake_256(picture.encode()).digest(4 * rows))
    return [-2 - number % _ROW_IDS for number in numbers]
