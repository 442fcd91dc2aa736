"""An echo's concepts: readouts made up from a token's id, moved by exactly as much as they are steered."""

from dataclasses import replace
from typing import Final

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue, ReadoutUnavailable
from ganglion.core.events import Token
from ganglion.core.request import Ranges, Steering

STEPS: Final = 64
"""Values are whole multiples of 1/64 from -1 to 1: float32 holds each exactly."""


class Reader:
    """Reads the tokens of one request that lie in its ranges; raises for what cannot be read or steered."""

    def __init__(self, manifest: ReadoutManifest | None, ranges: Ranges, steering: Steering) -> None:
        if ranges and manifest is None:
            raise ReadoutUnavailable(
                "This model has no concepts loaded, so there is nothing to read out of it.", param="readout"
            )
        self._ranges = ranges
        self._concepts = manifest.concepts if manifest is not None else ()
        self._layers = manifest.layers if manifest is not None else ()
        self._moved = self._steered(steering)

    def wants(self, position: int) -> bool:
        """Whether a position lies in a range."""
        return any(start <= position and (end is None or position < end) for start, end in self._ranges)

    def read(self, token: Token) -> Token:
        """The token, with its readout where that was asked for."""
        return replace(token, readout=self._values(token.id)) if self.wants(token.position) else token

    def _values(self, token_id: int) -> tuple[float, ...]:
        return tuple(
            made_up(token_id, layer, place) + self._moved.get((layer, place), 0.0)
            for layer in self._layers
            for place in range(len(self._concepts))
        )

    def _steered(self, steering: Steering) -> dict[tuple[int, int], float]:
        moved: dict[tuple[int, int], float] = {}
        for steer in steering:
            if steer.concept not in self._concepts:
                raise InvalidValue(
                    f"There is no concept {steer.concept[:64]!r} here.",
                    param="steering",
                    hint=f"One of: {', '.join(self._concepts)}."
                    if self._concepts
                    else "No concepts are loaded.",
                )
            layers = self._layers if steer.layers is None else steer.layers
            for layer in layers:
                if layer not in self._layers:
                    raise InvalidValue(
                        f"The concept {steer.concept!r} has no vector for layer {layer}.",
                        param="steering",
                        hint=f"One of: {', '.join(map(str, self._layers))}.",
                    )
                key = (layer, self._concepts.index(steer.concept))
                moved[key] = moved.get(key, 0.0) + steer.strength
        return moved


def made_up(token_id: int, layer: int, concept: int) -> float:
    """What an unsteered echo reads of a token."""
    return ((token_id + 31 * layer + 17 * concept) % (2 * STEPS + 1) - STEPS) / STEPS
