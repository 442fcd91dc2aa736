"""The hub settings of the environment, read as huggingface_hub reads them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ENDPOINT: Final = "https://huggingface.co"
_TRUE: Final = frozenset({"1", "on", "yes", "true"})


def endpoint(environment: Mapping[str, str]) -> str:
    """HF_ENDPOINT, else the public hub."""
    return environment.get("HF_ENDPOINT") or _ENDPOINT


def is_offline(environment: Mapping[str, str]) -> bool:
    """Whether only what is cached may be used."""
    named = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return named.lower() in _TRUE


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the Hugging Face cache lies, as huggingface_hub decides it."""
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return expanded(named, environment) if named else _hf_home(environment) / "hub"


def _hf_home(environment: Mapping[str, str]) -> Path:
    if named := environment.get("HF_HOME"):
        return expanded(named, environment)
    return expanded(environment.get("XDG_CACHE_HOME") or "~/.cache", environment) / "huggingface"


def expanded(path: str, environment: Mapping[str, str]) -> Path:
    """A path as people write it, with `~` for the environment's home."""
    whole = os.path.expandvars(path)
    return user_home(environment) / whole[2:] if whole.startswith("~/") else Path(whole).expanduser()


def user_home(environment: Mapping[str, str]) -> Path:
    """The home folder that the environment names, else the user's own."""
    return Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())


def token(environment: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else what `hf auth login` left."""
    if environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE:
        return None
    found = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    if not found:
        try:
            found = _token_file(environment).read_text()
        except (OSError, UnicodeDecodeError):
            return None
    return found.strip() or None


def token_source(environment: Mapping[str, str]) -> str:
    """Where the token comes from, for people."""
    if environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN"):
        return "HF_TOKEN is set"
    return f"read from {_token_file(environment)}"


def _token_file(environment: Mapping[str, str]) -> Path:
    named = environment.get("HF_TOKEN_PATH")
    return expanded(named, environment) if named else _hf_home(environment) / "token"
