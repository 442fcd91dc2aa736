"""From what a request is steered by to the vectors that are added after each layer.

Law: what is added after a layer is the sum of strength times span times unit vector, each divided by the
number of layers that its concept is steered after: the stream carries every push to the end, so that a
strength means the same however many layers there are. The library adds nothing after layer 0.
"""

import json
import math
from collections import OrderedDict
from typing import Final

import numpy as np

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue
from ganglion.core.request import Steer, Steering, salt_of
from ganglion.engines.concept_pack import ConceptBook, Floats

STRONGEST: Final = 100.0
"""Beyond a few times the distance between opposites a model only stammers; this is a mistake."""
MOST_STEERS: Final = 64
MOST_KEPT: Final = 16
"""Vectors of as many steerings are kept between steps: each is as large as one token's residual streams."""

Asked = list[tuple[str, float, list[int] | None]]
"""Concept, strength and layers, as a worker is told."""


def check_steering(steering: Steering, manifest: ReadoutManifest | None) -> None:
    """Raise InvalidValue unless the model can be steered so."""
    if not steering:
        return
    if manifest is None:
        raise _refused(
            "This model has no concepts to steer by.", "Load a concept pack with it; ganglion concepts helps."
        )
    if len(steering) > MOST_STEERS:
        raise _refused(f"{len(steering)} concepts are steered at once, and {MOST_STEERS} are allowed.")
    for steer in steering:
        _check_steer(steer, manifest)


def is_kept_apart(salt: str, steering: Steering) -> bool:
    """Whether a salt keeps what is computed under some steering from everybody who is steered otherwise."""
    return not steering or salt.endswith(salt_of("", steering))


def key_of(asked: Asked) -> str:
    """One name for each way of steering, empty for none; strength 0 steers by nothing."""
    active = sorted(json.dumps(each) for each in asked if each[1])
    return f"[{','.join(active)}]" if active else ""


class Steerer:
    """Makes the vectors of a steering from the concepts of a model."""

    def __init__(self, book: ConceptBook | None, block_count: int) -> None:
        self._book = book
        self._block_count = block_count
        self._kept: OrderedDict[str, Floats] = OrderedDict()

    def knows(self, key: str) -> bool:
        """Whether all concepts of a steering are loaded."""
        known = () if self._book is None else self._book.manifest.concepts
        return all(concept in known for concept, _, _ in json.loads(key))

    def vectors(self, key: str) -> Floats:
        """What is added after each layer from 1 on, `[layers, hidden]`."""
        found = self._kept.pop(key, None)
        if found is None:
            found = self._summed(json.loads(key))
        self._kept[key] = found
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    def _summed(self, asked: Asked) -> Floats:
        assert self._book is not None
        concepts, layers = self._book.manifest.concepts, self._book.manifest.layers
        total = np.zeros((self._block_count - 1, self._book.vectors[0].shape[1]), np.float64)
        for concept, strength, chosen in asked:
            number = concepts.index(concept)
            steered = [
                at for at, layer in enumerate(layers) if layer > 0 and (chosen is None or layer in chosen)
            ]
            for at in steered:
                scale = strength / len(steered) * float(self._book.spans[at][number])
                total[layers[at] - 1] += scale * self._book.vectors[at][number]
        most = np.finfo(np.float32).max
        return total.clip(-most, most).astype(np.float32)


def _check_steer(steer: Steer, manifest: ReadoutManifest) -> None:
    if steer.concept not in manifest.concepts:
        raise _refused(
            f"The concept {steer.concept[:80]!r} is not one of this model's.",
            f"It knows {', '.join(manifest.concepts[:16])}.",
        )
    if not math.isfinite(steer.strength) or abs(steer.strength) > STRONGEST:
        raise _refused(
            f"The strength {steer.strength} is not a number between -{STRONGEST:g} and {STRONGEST:g}.",
            "At 1 the concept moves as far as its examples are from their opposites; try 0.5 to 4.",
        )
    known = [layer for layer in manifest.layers if layer > 0]
    hint = f"Layers {', '.join(map(str, known))} can be steered; leave them out for all of these."
    if steer.layers is None and not known:
        raise _refused("The concepts are of layer 0 alone, which cannot be steered.")
    if steer.layers is not None and not steer.layers:
        raise _refused(f"No layer is named to steer {steer.concept[:80]!r} after.", hint)
    if len(steer.layers or ()) > len(known):
        raise _refused(f"{len(steer.layers or ())} layers are named, and {len(known)} can be steered.", hint)
    for layer in steer.layers or ():
        if layer not in known:
            why = "cannot be steered" if layer == 0 else "is not one of the concepts' layers"
            raise _refused(f"Layer {layer} {why}.", hint)


def _refused(message: str, hint: str | None = None) -> InvalidValue:
    return InvalidValue(message, param="steering", hint=hint)
