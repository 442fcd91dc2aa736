"""A concept as a control vector of llama.cpp: a GGUF file of one direction a layer.

`direction.<layer>` is added to the residual stream after that layer, times the strength that the reader asks
for. Layer 0 cannot be said in this format.
"""

import struct
from pathlib import Path
from typing import Final

import numpy as np

from ganglion.core.errors import InvalidValue
from ganglion.engines.concept_pack import ConceptPack

ARCHITECTURE: Final = "controlvector"
VERSION: Final = 3
ALIGNMENT: Final = 32
TEXT, INT32, FLOAT32 = 8, 5, 0


def write_control_vector(pack: ConceptPack, concept: str, path: Path) -> None:
    """Write one concept of a pack; strength 1 is what strength 1 is here, its span over all layers."""
    place = pack.manifest.concepts.index(concept)
    layers = [layer for layer in pack.manifest.layers if layer > 0]
    vectors = {
        layer: np.ascontiguousarray(
            pack.vectors[layer][place] * (pack.spans(layer)[place] / len(layers)), "<f4"
        )
        for layer in layers
    }
    if not vectors:
        raise InvalidValue(f"The concept {concept!r} has layer 0 alone, which no control vector can say.")
    entries = (
        _text("general.architecture") + struct.pack("<I", TEXT) + _text(ARCHITECTURE),
        _text(f"{ARCHITECTURE}.model_hint")
        + struct.pack("<I", TEXT)
        + _text(pack.manifest.model.architecture),
        _text(f"{ARCHITECTURE}.layer_count") + struct.pack("<Ii", INT32, len(vectors)),
    )
    infos, data = b"", b""
    for layer, vector in vectors.items():
        infos += _text(f"direction.{layer}") + struct.pack("<IQIQ", 1, vector.size, FLOAT32, len(data))
        data += _padded(vector.tobytes())
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(vectors), len(entries)) + b"".join(entries) + infos
    path.write_bytes(_padded(head) + data)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
