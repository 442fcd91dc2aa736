"""Readouts on OpenAI's first wires, and the manifest of their concepts and layers."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ganglion.core.engine import ReadoutManifest
from ganglion.core.events import Token


class TokenReadout(Struct, frozen=True):
    """The readout of one token: for each layer of the manifest one value a concept."""

    id: int
    position: int
    values: list[tuple[float, ...]]


class ReadoutCard(Struct, frozen=True, kw_only=True):
    """The concepts and layers that are read out, in the order of the values."""

    model: str
    concepts: tuple[str, ...]
    layers: tuple[int, ...]


def readouts_of(tokens: Iterable[Token], concepts: int) -> list[TokenReadout]:
    """One entry a token that was read; `concepts` says how many values a layer has."""
    return [
        TokenReadout(token.id, token.position, _by_layer(token.readout, concepts))
        for token in tokens
        if token.readout
    ]


def manifest(model: str, told: ReadoutManifest) -> bytes:
    """The body of `GET /v1/readout/manifest`."""
    return msgspec.json.encode(ReadoutCard(model=model, concepts=told.concepts, layers=told.layers))


def _by_layer(values: tuple[float, ...], concepts: int) -> list[tuple[float, ...]]:
    width = concepts or len(values)
    return [values[start : start + width] for start in range(0, len(values), width)]
