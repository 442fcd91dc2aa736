"""Embedding vectors as arrays of 32-bit floats: unit length, fewer dimensions, base64."""

import sys
from array import array
from base64 import b64decode, b64encode
from math import sqrt
from typing import TypeAlias

from ganglion.core.errors import InvalidValue

Vector: TypeAlias = "array[float]"


def normalize(vector: Vector) -> Vector:
    """The vector at a length of 1; one that has it already, or has none, as it is."""
    length = sqrt(sum(value * value for value in vector))
    if length == 0.0 or abs(length - 1.0) < 1e-6:
        return vector
    return array("f", [value / length for value in vector])


def cut(vector: Vector, dimensions: int | None) -> Vector:
    """The first dimensions alone, at a length of 1; raises InvalidValue where the vector has fewer."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise InvalidValue(
            f"'dimensions' is {dimensions}; this model's vectors have {len(vector)}.", param="dimensions"
        )
    return normalize(vector[:dimensions])


def encode_base64(vector: Vector) -> str:
    """Little-endian, as every client reads it."""
    return b64encode(_little_endian(vector).tobytes()).decode()


def decode_base64(text: str) -> Vector:
    """The vector that `encode_base64` wrote; raises ValueError."""
    return _little_endian(array("f", b64decode(text, validate=True)))


def _little_endian(vector: Vector) -> Vector:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector
