"""Writes a taught tower as a projector file that llama.cpp reads: type `mlp`, weights in half precision.

python -m tools.eyes.write CHECKPOINT.pt PROJECTOR.gguf
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter
from tools.eyes.sizes import (
    DEVIATION,
    EPSILON,
    HEADS,
    HIDDEN,
    LAYERS,
    MEAN,
    PATCH,
    PROJECTED,
    SIDE,
    WIDTH,
)
from tools.eyes.tower import Eyes
from torch import Tensor

HALF_PRECISION = 1
"""`general.file_type`: mostly F16."""


def written_name(name: str) -> str:
    """A parameter's name in PyTorch as llama.cpp calls the tensor."""
    if name == "position":
        return "v.position_embd.weight"
    if name.startswith("mm_"):
        return "mm." + name.removeprefix("mm_")
    return "v." + name.replace("blocks.", "blk.").replace("patch.", "patch_embd.")


def write(eyes: Eyes, path: Path) -> None:
    """One file with everything that `mtmd` asks of a vision projector."""
    writer = GGUFWriter(path, "clip")
    writer.add_name("eyes for SmolLM2-135M")
    writer.add_description("A small vision transformer for SmolLM2-135M-Instruct, taught on drawn pictures.")
    writer.add_file_type(HALF_PRECISION)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    for key, value in (
        ("image_size", SIDE),
        ("patch_size", PATCH),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HIDDEN),
        ("block_count", LAYERS),
        ("attention.head_count", HEADS),
        ("projection_dim", PROJECTED),
    ):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", EPSILON)
    writer.add_array("clip.vision.image_mean", [MEAN] * 3)
    writer.add_array("clip.vision.image_std", [DEVIATION] * 3)
    # Without it llama.cpp stops one layer early, as LLaVA does.
    writer.add_array("clip.vision.feature_layer", [LAYERS])
    for name, tensor in eyes.state_dict().items():
        writer.add_tensor(written_name(name), stored(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored(name: str, tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float16 | np.float32]]:
    """Matrices in half precision; what is added or scaled in full, as llama.cpp's operations want it."""
    values = tensor.detach().float().cpu().numpy()
    is_matrix = values.ndim > 1 and name != "position"
    return values.astype(np.float16) if is_matrix else values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("projector", type=Path)
    arguments = parser.parse_args()
    eyes = Eyes()
    eyes.load_state_dict(torch.load(arguments.checkpoint, weights_only=True)["eyes"])
    write(eyes, arguments.projector)
    content = arguments.projector.read_bytes()
    manifest = {
        "file": arguments.projector.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
    }
    arguments.projector.with_name("manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
