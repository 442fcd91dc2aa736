"""GGUF files of a few hundred bytes: all that a listing reads, and no weights to speak of."""

import struct


def tiny_gguf(architecture: str = "llama", *, filling: bytes = b"") -> bytes:
    """A model of two layers with a chat template; `filling` makes one file differ from another."""
    metadata = [
        _text_entry("general.architecture", architecture),
        _text_entry("general.name", "Tiny"),
        _number_entry("general.file_type", 15),
        _number_entry(f"{architecture}.block_count", 2),
        _number_entry(f"{architecture}.context_length", 512),
        _number_entry(f"{architecture}.embedding_length", 64),
        _number_entry(f"{architecture}.attention.head_count", 8),
        _text_entry("tokenizer.chat_template", "{{ messages }}"),
        _real_entry("general.sampling.temp", 0.5),
    ]
    tensor = _text("blk.0.weight") + struct.pack("<IQIQ", 1, 16, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(metadata)) + b"".join(metadata) + tensor
    return head + bytes(-len(head) % 32) + bytes(64) + filling


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _text_entry(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", 8) + _text(value)


def _number_entry(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", 4, value)


def _real_entry(key: str, value: float) -> bytes:
    return _text(key) + struct.pack("<If", 6, value)
