"""From what a request is steered by to the vectors that are added after each layer.

Law: what is added after a layer is the sum of strength times span times unit vector, each divided by the
number of layers that its concept is steered after: the stream carries every push to the end, so that a
strength means the same however many layers there are. The library adds nothing after layer 0.
"""

import json
from collections import OrderedDict
from typing import Final

import numpy as np

from ganglion.engines.concepts.pack import ConceptBook, Floats

_MOST_KEPT: Final = 16
"""Vectors of as many steerings are kept between steps: each is as large as one token's residual streams."""

_SteeringTerms = list[tuple[str, float, list[int] | None]]
"""Concept, strength and layers, as a worker is told."""


def variant_of(terms: _SteeringTerms) -> str:
    """One name for each way of steering, empty for none; strength 0 steers by nothing."""
    active = sorted(json.dumps(each) for each in terms if each[1])
    return f"[{','.join(active)}]" if active else ""


class Steerer:
    """Makes the vectors of a steering from the concepts of a model."""

    def __init__(self, concepts: ConceptBook | None, block_count: int) -> None:
        self._concepts = concepts
        self._block_count = block_count
        self._kept: OrderedDict[str, Floats] = OrderedDict()

    def knows(self, key: str) -> bool:
        """Whether all concepts of a steering are loaded."""
        known = () if self._concepts is None else self._concepts.manifest.concepts
        return all(concept in known for concept, _, _ in json.loads(key))

    def vectors(self, key: str) -> Floats:
        """What is added after each layer from 1 on, `[layers, hidden]`."""
        found = self._kept.pop(key, None)
        if found is None:
            found = self._summed(json.loads(key))
        self._kept[key] = found
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    def _summed(self, terms: _SteeringTerms) -> Floats:
        assert self._concepts is not None
        concepts, layers = self._concepts.manifest.concepts, self._concepts.manifest.layers
        total = np.zeros((self._block_count - 1, self._concepts.vectors[0].shape[1]), np.float64)
        for concept, strength, chosen in terms:
            number = concepts.index(concept)
            steered = [
                at for at, layer in enumerate(layers) if layer > 0 and (chosen is None or layer in chosen)
            ]
            for at in steered:
                scale = strength / len(steered) * float(self._concepts.spans[at][number])
                total[layers[at] - 1] += scale * self._concepts.vectors[at][number]
        most = np.finfo(np.float32).max
        return total.clip(-most, most).astype(np.float32)
