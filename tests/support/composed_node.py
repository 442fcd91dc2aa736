"""A node as `ganglion serve --engine echo` composes it, over a hub on this machine and empty stores."""

from pathlib import Path

import pytest

from ganglion.cli.compose import compose
from ganglion.registry.loading.residency import Residency
from support.configured import configured


def composed(
    folder: Path, patch: pytest.MonkeyPatch, hub_url: str, *names: str, **settings: object
) -> Residency:
    """An engine that finds names as a node does: held models, stores, and the hub at this address."""
    patch.setenv("GANGLION_HOME", str(folder / "home"))
    patch.setenv("HOME", str(folder / "user"))
    patch.setenv("HF_HOME", str(folder / "hf"))
    patch.setenv("OLLAMA_MODELS", str(folder / "ollama"))
    patch.delenv("HF_HUB_OFFLINE", raising=False)
    keys = {"engine.name": "echo", "hub.endpoint": hub_url, **settings}
    return compose(configured(keys), names, []).engine
