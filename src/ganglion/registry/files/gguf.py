"""A GGUF file's own description of its model, read in milliseconds and without its weights."""

import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Final, Literal

from ganglion.core.errors import LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts, Pooling, ProjectorFacts
from ganglion.core.sampling import Sampling, file_bounds, sampling_from
from ganglion.registry.files.capabilities import capabilities, is_encoder
from ganglion.registry.files.gguf_reader import (
    GgufArray,
    GgufFileHeader,
    GgufReader,
    MalformedGguf,
    Metadata,
    NotGguf,
)
from ganglion.registry.files.parts import PARTS_LIMIT, part_of, parts_of

_QUANTISATIONS: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
_POOLINGS: Final[dict[int, Pooling]] = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
# No model comes near these; a number beyond one is a damaged file, and would plan absurd memory.
_LAYERS_LIMIT: Final = 1 << 14
_WIDTH_LIMIT: Final = 1 << 20
_CONTEXT_LIMIT: Final = 1 << 31
_ARCHITECTURE_LIMIT: Final = 64
_NAME_LIMIT: Final = 256

_COMPANION_TYPES: Final = frozenset({"adapter", "imatrix", "mmproj"})
_COMPANION_ARCHITECTURES: Final = frozenset({"clip"})
_VISION_ARCHITECTURES: Final = frozenset(
    {"cogvlm", "hunyuan_vl", "mllama", "qwen2vl", "qwen3vl", "qwen3vlmoe"}
)

_NOT_GGUF_HINT: Final = "Ganglion's llama engine runs GGUF files; download the model in that format."
_DAMAGED_HINT: Final = "The file is damaged or its download was cut short; download it again."


@dataclass(frozen=True, slots=True)
class GgufFileFacts:
    """The facts of one file: of a whole model, a part of one, or a companion such as a projector."""

    kind: Literal["model", "part", "companion"]
    facts: ModelFacts | None
    """Of this file alone; only a model and its first part describe it."""
    parameters: int
    number: int = 1
    count: int = 1
    block_bytes: Mapping[int, int] = field(default_factory=dict)
    projector: ProjectorFacts | None = None
    """Of a companion that is one."""


def read_facts(path: Path) -> ModelFacts:
    """The facts of a model, over all parts; raises ModelNotFound or LoadFailed."""
    file = read_file(path)
    if file.facts is None:
        raise LoadFailed(f"{path} is not a model of its own.", hint=_not_alone(path, file))
    if file.count == 1:
        return file.facts
    others = [_read_part(path, other, number, file.count) for number, other in _others(path, file.count)]
    return replace(
        file.facts,
        size_bytes=file.facts.size_bytes + sum(size_bytes for size_bytes, _ in others),
        parameters=file.parameters + sum(part.parameters for _, part in others),
        block_bytes=_block_bytes([file, *(part for _, part in others)], file.facts.block_count),
    )


def read_file(path: Path) -> GgufFileFacts:
    """The facts of this one file, without its other parts; raises ModelNotFound or LoadFailed."""
    try:
        return _read(path)
    except MalformedGguf as error:
        hint = _NOT_GGUF_HINT if isinstance(error, NotGguf) else _DAMAGED_HINT
        raise LoadFailed(f"{path} is not a GGUF model: {error}.", hint=hint) from error
    except FileNotFoundError as error:
        raise ModelNotFound(str(path), hint=f"There is no such file in {path.parent}.") from error
    except PermissionError as error:
        raise LoadFailed(f"{path} may not be read by this user.", hint=f"chmod a+r {path}") from error
    except OSError as error:
        raise LoadFailed(f"{path} could not be read: {error.strerror or error}.") from error


def _others(path: Path, count: int) -> list[tuple[int, Path]]:
    paths = parts_of(path)
    if len(paths) != count or paths[0] != path:
        raise LoadFailed(
            f"{path} is the first of {count} parts, and its name does not say so.",
            hint=f"Name the parts NAME-00001-of-{count:05}.gguf and so on: that is how the others are found.",
        )
    return [(number, other) for number, other in enumerate(paths, start=1) if number > 1]


def _block_bytes(files: list[GgufFileFacts], block_count: int) -> tuple[int, ...]:
    """The bytes of each layer over all parts; empty where none is named as layers are."""
    found = tuple(sum(file.block_bytes.get(number, 0) for file in files) for number in range(block_count))
    return found if any(found) else ()


def _read_part(first: Path, path: Path, number: int, count: int) -> tuple[int, GgufFileFacts]:
    """Bytes and facts of one further part."""
    try:
        size_bytes = path.stat().st_size
        file = read_file(path)
    except (OSError, ModelNotFound) as error:
        raise LoadFailed(
            f"{first} lacks {path.name}, part {number} of {count}.",
            hint=f"Put it into {path.parent}, or download the model again.",
        ) from error
    if (file.number, file.count) != (number, count):
        raise LoadFailed(
            f"{path} says it is part {file.number} of {file.count}, expected part {number} of {count}.",
            hint=_DAMAGED_HINT,
        )
    return size_bytes, file


def _not_alone(path: Path, file: GgufFileFacts) -> str:
    if file.kind == "companion":
        return "It belongs to a language model (a projector, an adapter or the like): name that model's file."
    return f"It is part {file.number} of {file.count}: name the first one, {parts_of(path)[0].name}."


def _read(path: Path) -> GgufFileFacts:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        inside = sorted(file.name for file in path.glob("*.gguf"))[:5]
        hint = f"Name one of its files: {', '.join(inside)}." if inside else "Name a GGUF file."
        raise LoadFailed(f"{path} is a folder, expected a GGUF file.", hint=hint)
    if not stat.S_ISREG(status.st_mode):
        raise LoadFailed(f"{path} is not a regular file.", hint=_NOT_GGUF_HINT)
    if status.st_size == 0:
        raise LoadFailed(f"{path} is empty.", hint=_DAMAGED_HINT)
    with path.open("rb", buffering=0) as file:
        reader = GgufReader(file, status.st_size)
        header = reader.header()
        if header.end > status.st_size:
            raise LoadFailed(
                f"{path} is cut short: its weights end at byte {header.end}, the file at {status.st_size}.",
                hint=_DAMAGED_HINT,
            )
        if header.parameters > status.st_size * 8:
            raise MalformedGguf(f"it announces {header.parameters} weights, each less than a bit")
        return _file_facts(path, status, header, reader)


def _file_facts(
    path: Path, status: os.stat_result, header: GgufFileHeader, reader: GgufReader
) -> GgufFileFacts:
    metadata = header.metadata
    count = _whole(metadata, "split.count", PARTS_LIMIT, smallest=0) or 1
    number = (_whole(metadata, "split.no", PARTS_LIMIT, smallest=0) or 0) + 1
    if number > count:
        raise MalformedGguf(f"it says it is part {number} of {count}")
    if number > 1:
        return GgufFileFacts("part", None, header.parameters, number, count, header.block_bytes)
    kind = _text(metadata, "general.type")
    if kind in _COMPANION_TYPES or _text(metadata, "general.architecture") in _COMPANION_ARCHITECTURES:
        projector = _projector(path, status, metadata)
        return GgufFileFacts("companion", None, header.parameters, projector=projector)
    if not header.tensor_count and count == 1:
        raise MalformedGguf("it holds no weights, only a vocabulary")
    facts = _facts(path, status, header, reader)
    file = GgufFileFacts("model", facts, header.parameters, number, count, header.block_bytes)
    return replace(file, facts=replace(facts, block_bytes=_block_bytes([file], facts.block_count)))


def _projector(path: Path, status: os.stat_result, metadata: Metadata) -> ProjectorFacts | None:
    if _text(metadata, "general.architecture") not in _COMPANION_ARCHITECTURES:
        return None
    # Older files have one encoder, which sees, and say neither.
    sees = metadata.get("clip.has_vision_encoder") is True or "clip.vision.block_count" in metadata
    hears = metadata.get("clip.has_audio_encoder") is True
    kinds = (_text(metadata, f"clip.{of}projector_type") for of in ("", "vision.", "audio."))
    widths = (_whole(metadata, f"clip.{of}.projection_dim", _WIDTH_LIMIT) for of in ("vision", "audio"))
    return ProjectorFacts(
        path=str(path),
        size_bytes=status.st_size,
        kind=next((kind for kind in kinds if kind), "mlp")[:_ARCHITECTURE_LIMIT],
        sees=sees,
        hears=hears,
        width=next((width for width in widths if width), 0),
    )


def _facts(path: Path, status: os.stat_result, header: GgufFileHeader, reader: GgufReader) -> ModelFacts:
    metadata = header.metadata
    architecture = _text(metadata, "general.architecture")
    if not architecture:
        raise MalformedGguf("it does not name its architecture")
    if len(architecture) > _ARCHITECTURE_LIMIT or not architecture.isprintable():
        raise MalformedGguf(f"it names {shortened(architecture)} as its architecture")
    block_count = _whole(metadata, f"{architecture}.block_count", _LAYERS_LIMIT)
    context_length = _whole(metadata, f"{architecture}.context_length", _CONTEXT_LIMIT)
    if block_count is None or context_length is None:
        raise MalformedGguf(
            f"it holds no language model (architecture {architecture!r}, no layers or context length)"
        )
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocabulary = tokens if isinstance(tokens, GgufArray) else GgufArray(8, 0, 0)
    bos_token, eos_token = _special_tokens(metadata, vocabulary, reader)
    file_type = metadata.get("general.file_type")
    chat_template = _text(metadata, "tokenizer.chat_template")
    part = part_of(path.name)
    return ModelFacts(
        path=str(path),
        size_bytes=status.st_size,
        modified_s=int(status.st_mtime),
        architecture=architecture,
        name=(_text(metadata, "general.name") or (part.stem if part else path.stem))[:_NAME_LIMIT],
        context_length=context_length,
        block_count=block_count,
        kv_values_per_token=_kv_values(metadata, architecture, block_count, reader),
        vocabulary_size=vocabulary.count or _whole(metadata, f"{architecture}.vocab_size", _WIDTH_LIMIT) or 0,
        chat_template=chat_template,
        bos_token=bos_token,
        eos_token=eos_token,
        quantisation=_QUANTISATIONS.get(file_type, "") if isinstance(file_type, int) else "",
        parameters=header.parameters,
        capabilities=_capabilities(metadata, architecture, chat_template),
        sampling=_sampling(metadata),
        pooling=_pooling(metadata, architecture),
        embedding_length=_whole(metadata, f"{architecture}.embedding_length", _WIDTH_LIMIT) or 0,
    )


def _capabilities(metadata: Metadata, architecture: str, chat_template: str | None) -> tuple[str, ...]:
    is_encoding = is_encoder(architecture)
    vision_keys = ("clip.", f"{architecture}.vision.")
    return capabilities(
        chat_template=chat_template,
        is_causal=not is_encoding and metadata.get(f"{architecture}.attention.causal") is not False,
        # Pooling 0 is none at all.
        is_embedding=is_encoding or bool(metadata.get(f"{architecture}.pooling_type")),
        has_vision=architecture in _VISION_ARCHITECTURES
        or any(key.startswith(vision_keys) for key in metadata),
    )


def _pooling(metadata: Metadata, architecture: str) -> Pooling | None:
    number = metadata.get(f"{architecture}.pooling_type")
    return _POOLINGS.get(number) if isinstance(number, int) else None


def _kv_values(metadata: Metadata, architecture: str, block_count: int, reader: GgufReader) -> int:
    """Key and value elements of one token over all layers; recurrent layers have no heads and add none."""
    heads = max(_per_layer(metadata, f"{architecture}.attention.head_count", block_count, reader), default=0)
    embedding = _whole(metadata, f"{architecture}.embedding_length", _WIDTH_LIMIT) or 0
    head_length = embedding // heads if heads else 0
    kv_heads = _per_layer(metadata, f"{architecture}.attention.head_count_kv", block_count, reader)
    key = _whole(metadata, f"{architecture}.attention.key_length", _WIDTH_LIMIT)
    value = _whole(metadata, f"{architecture}.attention.value_length", _WIDTH_LIMIT)
    width = (head_length if key is None else key) + (head_length if value is None else value)
    return sum(kv_heads or (heads,) * block_count) * width


def _per_layer(metadata: Metadata, key: str, block_count: int, reader: GgufReader) -> tuple[int, ...]:
    """One number for each layer, which a file writes once or as an array; empty when absent."""
    value = metadata.get(key)
    if not isinstance(value, GgufArray):
        number = _whole(metadata, key, _WIDTH_LIMIT, smallest=0)
        return () if number is None else (number,) * block_count
    numbers = reader.numbers(value)
    if len(numbers) < block_count:
        raise MalformedGguf(f"{key} has {len(numbers)} entries for {block_count} layers")
    return tuple(_checked(key, number, _WIDTH_LIMIT, 0) for number in numbers[:block_count])


def _special_tokens(metadata: Metadata, vocabulary: GgufArray, reader: GgufReader) -> tuple[str, str]:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    ids = frozenset(token for token in (bos, eos) if isinstance(token, int) and 0 <= token < vocabulary.count)
    texts = reader.strings(vocabulary, ids)
    return (
        texts.get(bos, "") if isinstance(bos, int) else "",
        texts.get(eos, "") if isinstance(eos, int) else "",
    )


_SAMPLING_KEYS: Final = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def _sampling(metadata: Metadata) -> Sampling:
    found = {name: _number(metadata, key, *file_bounds(name)) for name, key in _SAMPLING_KEYS.items()}
    top_k = found["top_k"]
    return sampling_from({**found, "top_k": None if top_k is None else int(top_k)})


def _number(metadata: Metadata, key: str, low: float, high: float) -> float | None:
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool | str | GgufArray) or not math.isfinite(value) or not low <= value <= high:
        raise MalformedGguf(f"{key} is {shortened(value)}, expected {low:g} to {high:g}")
    # Written as 32 bits: 0.6 is meant where 0.6000000238418579 is read.
    return float(f"{value:.7g}") if isinstance(value, float) else float(value)


def _text(metadata: Metadata, key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _whole(metadata: Metadata, key: str, limit: int, *, smallest: int = 1) -> int | None:
    value = metadata.get(key)
    return None if value is None else _checked(key, value, limit, smallest)


def _checked(key: str, value: object, limit: int, smallest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= limit:
        raise MalformedGguf(
            f"{key} is {shortened(value)}, expected a whole number from {smallest} to {limit}"
        )
    return value
