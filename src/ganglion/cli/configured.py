"""The operator's config as a command finds it: file, environment and flags."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ganglion import config as configuration
from ganglion.cli.options import OutputFlags
from ganglion.config import Config


def with_found_file(output: OutputFlags) -> OutputFlags:
    """The flags with the config file that is there now.

    For whoever reads it again later: then a file that is gone is an error, and not a config of defaults.
    """
    return replace(output, config=_file(output))


def load_config(
    output: OutputFlags, flags: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Config:
    """The config of this invocation; `defaults` are this command's own."""
    return configuration.load(_file(output), os.environ, {**flags, **output.settings()}, defaults)


def _file(output: OutputFlags) -> Path | None:
    if output.config is not None:
        return output.config
    default = configuration.home(os.environ) / "config.toml"
    return default if default.is_file() else None
