"""A checkpoint's tokenizer as vLLM's grammars see it: which tokens stay signs."""

import json
from pathlib import Path

import pytest

from ganglion.engines.vllm.worker.text_tokenizer import write_text_tokenizer

SIGNS = ("<end>", "<call>", "<picture>")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    added = [{"id": number, "content": sign, "special": True} for number, sign in enumerate(SIGNS)]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    named = {"eos_token": "<end>", "pad_token": "<call>", "image_token": "<picture>"}
    groups = {"extra_special_tokens": {"boi_token": "<picture>"}, "additional_special_tokens": ["<call>"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | groups))
    return folder


@pytest.mark.parametrize("sees", [False, True])
def test_all_signs_but_the_end_are_text_and_those_of_pictures_keep_their_names(
    checkpoint: Path, tmp_path: Path, *, sees: bool
) -> None:
    target = write_text_tokenizer(checkpoint, tmp_path / "target", sees=sees)
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    assert [token["special"] for token in tokenizer["added_tokens"]] == [True, False, False]
    config = json.loads((target / "tokenizer_config.json").read_text())
    of_pictures = {"image_token": "<picture>", "extra_special_tokens": {"boi_token": "<picture>"}}
    assert config == {"eos_token": "<end>"} | (of_pictures if sees else {})
