"""The operator's config as a command finds it: file, environment and flags."""

import os
from collections.abc import Mapping

from ganglion import config as configuration
from ganglion.cli.options import OutputFlags
from ganglion.config import Config


def load_config(
    output: OutputFlags, flags: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Config:
    """The config of this invocation; `defaults` are this command's own."""
    file = output.config
    if file is None:
        default = configuration.home(os.environ) / "config.toml"
        file = default if default.is_file() else None
    return configuration.load(file, os.environ, {**flags, **output.settings()}, defaults)
