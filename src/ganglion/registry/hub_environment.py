"""What the environment says of the hub, read as huggingface_hub reads it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ENDPOINT: Final = "https://huggingface.co"
_TRUE: Final = frozenset({"1", "on", "yes", "true"})


def endpoint(environment: Mapping[str, str]) -> str:
    """HF_ENDPOINT, else the public hub."""
    return environment.get("HF_ENDPOINT") or ENDPOINT


def is_offline(environment: Mapping[str, str]) -> bool:
    """Whether only what is cached may be used."""
    named = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return named.lower() in _TRUE


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the Hugging Face cache lies, as huggingface_hub decides it."""
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(named) if named else _hf_home(environment) / "hub"


def _hf_home(environment: Mapping[str, str]) -> Path:
    if named := environment.get("HF_HOME"):
        return _expanded(named)
    return _expanded(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def token(environment: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else what `hf auth login` left."""
    if environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE:
        return None
    found = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    if not found:
        named = environment.get("HF_TOKEN_PATH")
        try:
            found = (_expanded(named) if named else _hf_home(environment) / "token").read_text()
        except (OSError, UnicodeDecodeError):
            return None
    return found.strip() or None
