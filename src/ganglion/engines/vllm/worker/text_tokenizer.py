"""The checkpoint's tokenizer as vLLM's grammars are to see it: all tokens are text but those that end.

A marker is a control token in one model and text in the next; as text, one grammar fits both. That no other
control token slips into an answer is seen to beside the grammar: what it does not name is made impossible.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

_TOKENIZER: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_SPECIAL_MAP: Final = "special_tokens_map.json"
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
_TEXT_NAMES: Final = ("bos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""What a tokenizer of text alone names; other names are a picture processor's, which asks for them."""


def write_text_tokenizer(checkpoint: Path, target: Path, *, sees: bool = False) -> Path:
    """Write such a tokenizer into a folder, which is made, and return the folder.

    For a checkpoint that sees it keeps the tokens that pictures are written with.
    A checkpoint without a tokenizer.json is left as it is: the checkpoint's own folder is returned.
    """
    if not (checkpoint / _TOKENIZER).is_file():
        return checkpoint
    shutil.rmtree(target, ignore_errors=True)  # another life's
    target.mkdir()
    for name in ("config.json", "generation_config.json"):
        if (checkpoint / name).is_file():
            (target / name).symlink_to((checkpoint / name).absolute())
    config = _read(checkpoint / _CONFIG)
    special_map = _read(checkpoint / _SPECIAL_MAP)
    ends = {_content(config.get("eos_token") or special_map.get("eos_token"))}
    _write(target / _TOKENIZER, _plain_tokenizer(_read(checkpoint / _TOKENIZER), ends))
    _write(target / _CONFIG, _plain_config(config, ends) | (_picture_tokens(config) if sees else {}))
    _write(
        target / _SPECIAL_MAP, {"eos_token": special_map["eos_token"]} if "eos_token" in special_map else {}
    )
    return target


def _plain_tokenizer(tokenizer: dict[str, Any], ends: set[str]) -> dict[str, Any]:
    added = tokenizer.get("added_tokens") or []
    return {**tokenizer, "added_tokens": [_plain(token, ends) for token in added]}


def _plain_config(config: dict[str, Any], ends: set[str]) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in config.items()
        if name not in _LISTS and (name == "eos_token" or not name.endswith("_token"))
    }
    added = kept.get("added_tokens_decoder")
    if added is not None:
        kept["added_tokens_decoder"] = {number: _plain(token, ends) for number, token in added.items()}
    return kept


def _picture_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """The tokens that a picture processor asks for by name."""
    named = {
        name: value
        for name, value in config.items()
        if name.endswith("_token") and name != "eos_token" and name not in _TEXT_NAMES
    }
    groups = {name: config[name] for name in _LISTS if isinstance(config.get(name), dict)}
    return named | groups


def _plain(token: dict[str, Any], ends: set[str]) -> dict[str, Any]:
    return {**token, "special": token["content"] in ends}


def _content(token: str | dict[str, Any] | None) -> str:
    return token["content"] if isinstance(token, dict) else token or ""


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
