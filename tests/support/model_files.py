"""Small model files, written byte by byte: GGUF, its parts and companions, and safetensors."""

import json
import struct
from pathlib import Path

UINT16, UINT32, FLOAT32, BOOL, STRING, ARRAY = 2, 4, 6, 7, 8, 9
Entry = tuple[str, int, bytes]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(key: str, value: int) -> Entry:
    return key, UINT32, struct.pack("<I", value)


def short(key: str, value: int) -> Entry:
    return key, UINT16, struct.pack("<H", value)


def real(key: str, value: float) -> Entry:
    return key, FLOAT32, struct.pack("<f", value)


def boolean(key: str, value: bool) -> Entry:
    return key, BOOL, struct.pack("<?", value)


def string(key: str, value: str) -> Entry:
    return key, STRING, text(value)


def strings(key: str, values: list[str]) -> Entry:
    return key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def numbers(key: str, values: list[int]) -> Entry:
    return key, ARRAY, struct.pack(f"<IQ{len(values)}I", UINT32, len(values), *values)


def bare_gguf(entries: list[Entry], tensors: tuple[tuple[int, ...], ...] = ((16,),), kind: int = 0) -> bytes:
    """A header of exactly these entries, and tensors of these shapes with 4 bytes an element."""
    metadata = b"".join(text(key) + struct.pack("<I", value) + raw for key, value, raw in entries)
    infos, weights = b"", b""
    for index, shape in enumerate(tensors):
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += text(f"blk.{index}.weight") + dimensions + struct.pack("<IQ", kind, len(weights))
        elements = 1
        for length in shape:
            elements *= length
        weights += bytes(-(-elements * 4 // 32) * 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + metadata + infos
    return head + bytes(-len(head) % 32) + weights


def gguf(*extra: Entry, leave_out: str = "", tensors: tuple[tuple[int, ...], ...] = ((16,),)) -> bytes:
    """A small model file: two layers, four words, one tensor of 16 floats."""
    added = {key for key, _, _ in extra}
    entries: list[Entry] = [
        string("general.architecture", "llama"),
        string("general.name", "Tiny"),
        number("general.file_type", 15),
        number("llama.block_count", 2),
        number("llama.context_length", 512),
        number("llama.embedding_length", 64),
        number("llama.attention.head_count", 8),
        number("llama.attention.head_count_kv", 2),
        strings("tokenizer.ggml.tokens", ["<s>", "</s>", "a", "b"]),
        number("tokenizer.ggml.bos_token_id", 0),
        number("tokenizer.ggml.eos_token_id", 1),
        string("tokenizer.chat_template", "{{ messages }}"),
    ]
    return bare_gguf(
        [entry for entry in entries if entry[0] not in added | {leave_out}] + list(extra), tensors
    )


def model(architecture: str, *extra: Entry) -> bytes:
    """A small model of an architecture."""
    return bare_gguf(
        [
            string("general.architecture", architecture),
            number(f"{architecture}.block_count", 1),
            number(f"{architecture}.context_length", 64),
            *extra,
        ]
    )


def projector() -> bytes:
    return bare_gguf([string("general.architecture", "clip"), boolean("clip.has_vision_encoder", True)])


def split(count: int, number_of_part: int, tensors: tuple[tuple[int, ...], ...] = ((16,),)) -> bytes:
    """One part of a split model, as llama.cpp writes them: only the first describes the model."""
    keys = [short("split.no", number_of_part - 1), short("split.count", count)]
    return gguf(*keys, tensors=tensors) if number_of_part == 1 else bare_gguf(keys, tensors)


def split_into(folder: Path, stem: str, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{stem}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]
    for part, file in enumerate(files, start=1):
        file.write_bytes(split(count, part))
    return files


Tensors = dict[str, tuple[str, list[int], int]]
"""Type, shape and bytes by name."""
TENSORS: Tensors = {"embed": ("BF16", [4, 8], 64), "norm": ("F32", [8], 32)}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 2048,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 4,
}


def safetensors(tensors: Tensors = TENSORS, metadata: dict[str, str] | None = None) -> bytes:
    entries: dict[str, object] = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for name, (kind, shape, size) in tensors.items():
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    return safetensors_of(json.dumps(entries).encode(), offset)


def safetensors_of(header: bytes, weight_bytes: int = 0) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(weight_bytes)


def safetensors_model(folder: Path, **files: object) -> Path:
    """A folder as it comes from a hub; `config`, `tokenizer_config` and `generation_config` are its JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors())
    for name, content in {"config": CONFIG, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
