"""A small checkpoint that sees: Idefics3 of random weights, with a GGUF file's tokenizer.

Of the families that vLLM runs it is one that reads pictures without torchvision.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from support.checkpoint_files import write_safetensors, write_small_checkpoint

TILE: Final = 56
"""A side of what the tower reads at once: a picture larger than that is cut into tiles, as is shown below."""
TILE_POSITIONS: Final = 4
"""How many rows of embeddings a tile becomes."""
_SIDE: Final = 2 * TILE
_PATCH: Final = 14
_SCALE: Final = 2
_WIDTH: Final = 256
_TOWER: Final = 64
_TOKENS: Final = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
_SPARE: Final = 64
"""Rows of the vocabulary behind the tokenizer's own, for these."""

_Weights = npt.NDArray[np.float32]


def write_seeing_checkpoint(gguf: Path, folder: Path) -> Path:
    """Write it into a folder, which is made; returns the folder."""
    write_small_checkpoint(gguf, folder, width=_WIDTH)
    language = _read(folder / "config.json") | {"tie_word_embeddings": False}
    first = language["vocab_size"]
    language["vocab_size"] += _SPARE
    _write(folder / "config.json", _config(language, image_token=first))
    tokenizer = _read(folder / "tokenizer.json")
    added: list[dict[str, Any]] = tokenizer["added_tokens"]
    added += [added[0] | {"id": first + at, "content": token} for at, token in enumerate(_TOKENS)]
    _write(folder / "tokenizer.json", tokenizer)
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "size": {"longest_edge": _SIDE},
            "max_image_size": {"longest_edge": TILE},
        },
    )
    _write(
        folder / "processor_config.json",
        {"processor_class": "Idefics3Processor", "image_seq_len": TILE_POSITIONS},
    )
    write_safetensors(folder / "model.safetensors", _weights(language["vocab_size"]))
    return folder


def _config(language: dict[str, Any], *, image_token: int) -> dict[str, Any]:
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": image_token,
        "scale_factor": _SCALE,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "text_config": language,
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": _TOWER,
            "intermediate_size": 2 * _TOWER,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,
            "image_size": TILE,
            "patch_size": _PATCH,
        },
    }


def _weights(vocabulary: int) -> dict[str, _Weights]:
    """Random numbers, large enough for a picture to change what is said after it."""
    chance = np.random.default_rng(11)

    def drawn(*shape: int) -> _Weights:
        return chance.normal(0.0, 0.05, shape).astype(np.float32)

    def with_bias(name: str, weight: _Weights) -> dict[str, _Weights]:
        return {f"{name}.weight": weight, f"{name}.bias": np.zeros(weight.shape[0], np.float32)}

    tower, model = "model.vision_model", "model.text_model"
    found = {
        **with_bias(f"{tower}.embeddings.patch_embedding", drawn(_TOWER, 3, _PATCH, _PATCH)),
        f"{tower}.embeddings.position_embedding.weight": drawn((TILE // _PATCH) ** 2, _TOWER),
        **with_bias(f"{tower}.post_layernorm", np.ones(_TOWER, np.float32)),
        "model.connector.modality_projection.proj.weight": drawn(_WIDTH, _TOWER * _SCALE**2),
        f"{model}.embed_tokens.weight": drawn(vocabulary, _WIDTH),
        f"{model}.norm.weight": np.ones(_WIDTH, np.float32),
        "lm_head.weight": drawn(vocabulary, _WIDTH),
    }
    for number in range(2):
        layer = f"{tower}.encoder.layers.{number}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= with_bias(f"{layer}.self_attn.{part}", drawn(_TOWER, _TOWER))
        found |= with_bias(f"{layer}.mlp.fc1", drawn(2 * _TOWER, _TOWER))
        found |= with_bias(f"{layer}.mlp.fc2", drawn(_TOWER, 2 * _TOWER))
        for part in ("layer_norm1", "layer_norm2"):
            found |= with_bias(f"{layer}.{part}", np.ones(_TOWER, np.float32))
        layer = f"{model}.layers.{number}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            rows = _WIDTH // 2 if part in ("k_proj", "v_proj") else _WIDTH
            found[f"{layer}.self_attn.{part}.weight"] = drawn(rows, _WIDTH)
        for part in ("gate_proj", "up_proj"):
            found[f"{layer}.mlp.{part}.weight"] = drawn(2 * _WIDTH, _WIDTH)
        found[f"{layer}.mlp.down_proj.weight"] = drawn(_WIDTH, 2 * _WIDTH)
        for part in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{part}.weight"] = np.ones(_WIDTH, np.float32)
    return found


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
