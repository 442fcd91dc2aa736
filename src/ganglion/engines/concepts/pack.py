"""Concept packs: unit vectors of concepts by layer in a safetensors file, and a manifest beside it.

`NAME.safetensors` holds `layer_<i>.vectors`, float32 `[concepts, hidden]`; `NAME.json` says what they are.
Law: a pack is believed only after it was checked: shapes, finite numbers, unit length.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import GanglionError, InvalidValue, LoadFailed

Floats = npt.NDArray[np.float32]

_FORMAT: Final = 1
_MAX_MANIFEST_BYTES: Final = 2**20
_MAX_VECTOR_BYTES: Final = 2**30
_SHOWN_CONCEPTS: Final = 4
MAX_CONCEPTS: Final = 256
"""A readout is sent with every token: more concepts than this are a mistake."""
_UNIT_TOLERANCE: Final = 1e-3


class PackModel(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The model whose residual stream the vectors live in."""

    name: str
    architecture: str
    hidden_size: int
    block_count: int


class PackManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What stands beside the vectors."""

    name: str
    concepts: list[str]
    layers: list[int]
    model: PackModel
    format: int = _FORMAT
    spans: dict[str, list[float]] = {}
    """By layer, for each concept: how far apart its examples and their opposites lie along its vector."""
    description: str = ""
    trained: dict[str, Any] = {}
    """How it was made and how well it separates, for people."""


@dataclass(frozen=True, slots=True, eq=False)
class ConceptPack:
    """Vectors of some concepts after some layers of one model."""

    manifest: PackManifest
    vectors: dict[int, Floats] = field(repr=False)
    """By layer, `[concepts, hidden]`."""

    def spans(self, layer: int) -> Floats:
        """How far strength 1 steers each concept after a layer."""
        found = self.manifest.spans.get(str(layer), [1.0] * len(self.manifest.concepts))
        return np.asarray(found, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ConceptBook:
    """All packs of one model side by side, in the order of its readout."""

    manifest: ReadoutManifest
    vectors: tuple[Floats, ...]
    """For each layer, `[concepts, hidden]`."""
    spans: tuple[Floats, ...]
    """For each layer, one a concept."""


def manifest_path(path: Path) -> Path:
    """Where the manifest of a pack's vectors lies."""
    return path.with_suffix(".json")


def read_manifest(path: Path) -> PackManifest:
    """The manifest beside some vectors; raises LoadFailed for what is none."""
    try:
        with manifest_path(path).open("rb") as file:
            text = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(text) > _MAX_MANIFEST_BYTES:
            raise _broken(path, f"its manifest is larger than {_MAX_MANIFEST_BYTES} bytes")
        manifest = msgspec.json.decode(text, type=PackManifest)
    except OSError as error:
        raise _broken(path, f"its manifest cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(path, f"its manifest is not one: {error}") from error
    _check_manifest(path, manifest)
    return manifest


def read_pack(path: Path) -> ConceptPack:
    """A pack by the path of its vectors; raises LoadFailed for what is none."""
    manifest = read_manifest(path)
    try:
        if path.stat().st_size > _MAX_VECTOR_BYTES:
            raise _broken(path, f"it is larger than {_MAX_VECTOR_BYTES} bytes")
        tensors = load_file(path)
    except OSError as error:
        raise _broken(path, f"it cannot be read: {error.strerror}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _broken(path, f"it is not a safetensors file: {error}") from error
    vectors = {layer: _vectors(path, manifest, tensors.get(_key(layer)), layer) for layer in manifest.layers}
    return ConceptPack(manifest, vectors)


def write_pack(pack: ConceptPack, path: Path) -> None:
    """Write vectors and manifest; whoever reads meanwhile sees the old pack or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {_key(layer): np.ascontiguousarray(each, np.float32) for layer, each in pack.vectors.items()}
    fresh = path.with_suffix(f".{os.getpid()}.part")
    save_file(tensors, fresh)
    fresh.replace(path)
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(pack.manifest), indent=2))
    fresh.replace(manifest_path(path))


def _alignment(pack: ConceptPack, layers: Sequence[int]) -> str:
    """What brings a pack to the layers of another one, as commands that can be typed."""
    about = pack.manifest
    named = ",".join(map(str, layers))
    # A pack of several is not written over by its first concept.
    name = about.name if len(about.concepts) == 1 else f"{about.name}-again"
    commands = [
        f"ganglion concepts train {name} --concept {concept} --positive FILE --negative FILE "
        + (f"--layers {named}" if index == 0 else "--add")
        for index, concept in enumerate(about.concepts[:_SHOWN_CONCEPTS])
    ]
    return f"Train {about.name} on the layers of the other: {'; '.join(commands)}"


def merge_packs(packs: Sequence[ConceptPack]) -> ConceptBook | None:
    """Packs side by side, None for no pack; raises LoadFailed where they do not go together."""
    if not packs:
        return None
    layers = packs[0].manifest.layers
    concepts = [concept for pack in packs for concept in pack.manifest.concepts]
    for pack in packs[1:]:
        if pack.manifest.layers != layers:
            raise LoadFailed(
                f"The concept packs {packs[0].manifest.name!r} and {pack.manifest.name!r} name different "
                f"layers: {layers} and {pack.manifest.layers}.",
                hint=_alignment(pack, layers),
            )
    twice = sorted({concept for concept in concepts if concepts.count(concept) > 1})
    if twice:
        raise LoadFailed(f"Two concept packs name the concept {twice[0]!r}.", hint="Load one of them.")
    return ConceptBook(
        ReadoutManifest(tuple(concepts), tuple(layers)),
        tuple(np.concatenate([pack.vectors[layer] for pack in packs]) for layer in layers),
        tuple(np.concatenate([pack.spans(layer) for pack in packs]) for layer in layers),
    )


def check_shape(pack: ConceptPack, hidden_size: int, block_count: int) -> None:
    """Raise LoadFailed where the vectors of a pack cannot live in a model's stream."""
    expected = hidden_size, block_count
    found = pack.manifest.model.hidden_size, pack.manifest.model.block_count
    if found != expected:
        raise LoadFailed(
            f"The concept pack {pack.manifest.name!r} is of a model with {found[1]} layers of width "
            f"{found[0]}, and this one has {expected[1]} of {expected[0]}.",
            hint=f"It was trained on {pack.manifest.model.name!r}; train it anew on this model.",
        )


def _key(layer: int) -> str:
    return f"layer_{layer}.vectors"


def _check_manifest(path: Path, manifest: PackManifest) -> None:
    layers, concepts, model = manifest.layers, manifest.concepts, manifest.model
    if manifest.format != _FORMAT:
        raise _broken(path, f"its format is {manifest.format}, and this version knows {_FORMAT}")
    if not 0 < len(concepts) <= MAX_CONCEPTS or len(set(concepts)) < len(concepts) or "" in concepts:
        raise _broken(path, f"it must name between 1 and {MAX_CONCEPTS} concepts, each once")
    if not layers or layers != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= model.block_count:
        raise _broken(path, f"its layers must rise and lie below {model.block_count}")
    for layer in manifest.spans.values():
        if len(layer) != len(concepts) or not np.isfinite(layer).all():
            raise _broken(path, "its spans must be one finite number a concept")


def _vectors(path: Path, manifest: PackManifest, found: Floats | None, layer: int) -> Floats:
    expected = (len(manifest.concepts), manifest.model.hidden_size)
    if found is None or found.shape != expected or found.dtype != np.float32:
        held = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise _broken(path, f"it holds {held} for layer {layer}, expected float32 {list(expected)}")
    with np.errstate(all="ignore"):  # what overflows is not of unit length either
        lengths = np.linalg.norm(found, axis=1)
    if not np.isfinite(lengths).all() or (np.abs(lengths - 1.0) > _UNIT_TOLERANCE).any():
        raise _broken(path, f"its vectors of layer {layer} are not of unit length")
    return found


def _broken(path: Path, reason: str) -> GanglionError:
    return LoadFailed(
        f"{path.name} is not a concept pack: {reason}.",
        hint="A pack is NAME.safetensors with NAME.json beside it; ganglion concepts train makes one.",
    )


# `direction.<layer>` is added to the residual stream after that layer, times the strength that the reader
# asks for. Layer 0 cannot be said in this format.

_CONTROL_VECTOR: Final = "controlvector"
_GGUF_VERSION: Final = 3
_GGUF_ALIGNMENT: Final = 32
TEXT, INT32, FLOAT32 = 8, 5, 0


def write_control_vector(pack: ConceptPack, concept: str, path: Path) -> None:
    """Write one concept of a pack; strength 1 is what strength 1 is here, its span over all layers."""
    index = pack.manifest.concepts.index(concept)
    layers = [layer for layer in pack.manifest.layers if layer > 0]
    vectors = {
        layer: np.ascontiguousarray(
            pack.vectors[layer][index] * (pack.spans(layer)[index] / len(layers)), "<f4"
        )
        for layer in layers
    }
    if not vectors:
        raise InvalidValue(
            f"The concept {concept!r} has layer 0 alone, which a control vector cannot express."
        )
    entries = (
        _gguf_text("general.architecture") + struct.pack("<I", TEXT) + _gguf_text(_CONTROL_VECTOR),
        _gguf_text(f"{_CONTROL_VECTOR}.model_hint")
        + struct.pack("<I", TEXT)
        + _gguf_text(pack.manifest.model.architecture),
        _gguf_text(f"{_CONTROL_VECTOR}.layer_count") + struct.pack("<Ii", INT32, len(vectors)),
    )
    infos, data = b"", b""
    for layer, vector in vectors.items():
        infos += _gguf_text(f"direction.{layer}") + struct.pack("<IQIQ", 1, vector.size, FLOAT32, len(data))
        data += _padded(vector.tobytes())
    head = (
        b"GGUF" + struct.pack("<IQQ", _GGUF_VERSION, len(vectors), len(entries)) + b"".join(entries) + infos
    )
    path.write_bytes(_padded(head) + data)


def _gguf_text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _GGUF_ALIGNMENT)
