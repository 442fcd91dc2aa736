"""Projector files with random weights, small enough to be written for each run, and noise to look at."""

import io
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from PIL import Image

WIDTH = 576
"""Of the embedded model's rows."""


def write_projector(
    path: Path,
    *,
    kind: str = "mlp",
    width: int = WIDTH,
    size: int = 128,
    patch: int = 16,
    seed: int = 0,
) -> Path:
    """A vision tower of two layers and a projector behind it; an mlp one makes `(size / patch) ** 2` rows.

    Others: `idefics3` (slices with marker tokens), `gemma3` (rows that see each other), `qwen2vl_merger`
    (rows with coordinates).
    """
    inner, hidden, layers, positions = 64, 128, 2, (size // patch) ** 2
    chance = np.random.default_rng(seed)
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    writer.add_file_type(1)
    numbers = {
        "embedding_length": inner,
        "feed_forward_length": hidden,
        "block_count": layers,
        "projection_dim": width,
        "attention.head_count": 4,
        "image_size": size,
        "patch_size": patch,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    if kind == "mlp":
        writer.add_array("clip.vision.feature_layer", [layers])
    if kind == "idefics3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)
        writer.add_uint32("clip.vision.preproc_image_size", 2 * size)

    def weights(name: str, *shape: int, spread: float = 0.2) -> None:
        writer.add_tensor(f"{name}.weight", (chance.standard_normal(shape) * spread).astype(np.float16))

    def vector(name: str, *shape: int, around: float = 0.0) -> None:
        values = around + chance.standard_normal(shape) * 0.1
        writer.add_tensor(name, values.astype(np.float32))

    weights("v.patch_embd", inner, 3, patch, patch)
    if kind == "qwen2vl_merger":
        writer.add_tensor(
            "v.patch_embd.weight.1",
            (chance.standard_normal((inner, 3, patch, patch)) * 0.2).astype(np.float16),
        )
    else:
        vector("v.position_embd.weight", positions, inner)
    vector("v.post_ln.weight", inner, around=1.0)
    vector("v.post_ln.bias", inner)
    sizes = {
        **{f"attn_{part}": (inner, inner) for part in ("q", "k", "v", "out")},
        "ffn_up": (hidden, inner),
        "ffn_down": (inner, hidden),
    }
    for layer in range(layers):
        for name, shape in sizes.items():
            weights(f"v.blk.{layer}.{name}", *shape)
            vector(f"v.blk.{layer}.{name}.bias", shape[0])
        for name in ("ln1", "ln2"):
            vector(f"v.blk.{layer}.{name}.weight", inner, around=1.0)
            vector(f"v.blk.{layer}.{name}.bias", inner)
    if kind == "idefics3":
        weights("mm.model.fc", width, 4 * inner, spread=0.1)
    elif kind == "gemma3":
        weights("mm.input_projection", inner, width, spread=0.1)
        vector("mm.soft_emb_norm.weight", inner, around=1.0)
    elif kind == "qwen2vl_merger":
        weights("mm.0", 4 * inner, 4 * inner, spread=0.1)
        vector("mm.0.bias", 4 * inner)
        weights("mm.2", width, 4 * inner, spread=0.1)
        vector("mm.2.bias", width)
    else:
        weights("mm.0", width, inner, spread=0.1)
        vector("mm.0.bias", width)
        weights("mm.2", width, width, spread=0.06)
        vector("mm.2.bias", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_ears(path: Path, *, width: int, seed: int = 0) -> Path:
    """A projector that hears: a Whisper encoder of two layers and Ultravox's way out of it."""
    inner, hidden, layers, bins, stack = 64, 128, 2, 80, 10
    chance = np.random.default_rng(seed)
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "ultravox")
    writer.add_file_type(1)
    numbers = {
        "embedding_length": inner,
        "feed_forward_length": hidden,
        "block_count": layers,
        "projection_dim": width,
        "attention.head_count": 4,
        "num_mel_bins": bins,
        "projector.stack_factor": stack,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)

    def weights(name: str, *shape: int, spread: float = 0.2) -> None:
        writer.add_tensor(name, (chance.standard_normal(shape) * spread).astype(np.float16))

    def vector(name: str, *shape: int, around: float = 0.0) -> None:
        values = around + chance.standard_normal(shape) * 0.1
        writer.add_tensor(name, values.astype(np.float32))

    weights("a.conv1d.1.weight", inner, bins, 3)
    weights("a.conv1d.2.weight", inner, inner, 3)
    vector("a.conv1d.1.bias", inner, 1)
    vector("a.conv1d.2.bias", inner, 1)
    vector("a.position_embd.weight", 1500, inner)
    for name, around in (("weight", 1.0), ("bias", 0.0)):
        vector(f"a.post_ln.{name}", inner, around=around)
    sizes = {
        **{f"attn_{part}": (inner, inner) for part in ("q", "k", "v", "out")},
        "ffn_up": (hidden, inner),
        "ffn_down": (inner, hidden),
    }
    for layer in range(layers):
        for name, shape in sizes.items():
            weights(f"a.blk.{layer}.{name}.weight", *shape)
            if name != "attn_k":
                vector(f"a.blk.{layer}.{name}.bias", shape[0])
        for name in ("ln1", "ln2"):
            vector(f"a.blk.{layer}.{name}.weight", inner, around=1.0)
            vector(f"a.blk.{layer}.{name}.bias", inner)
    vector("mm.a.norm_pre.weight", stack * inner, around=1.0)
    weights("mm.a.mlp.1.weight", 2 * hidden, stack * inner, spread=0.05)
    vector("mm.a.norm_mid.weight", hidden, around=1.0)
    weights("mm.a.mlp.2.weight", width, hidden, spread=0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def noise_png(seed: int, width: int = 160, height: int = 120) -> bytes:
    """A picture that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
