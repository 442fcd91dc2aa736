"""The folder in which Ganglion keeps what it has: models, caches, the configuration, engines."""

from collections.abc import Mapping
from pathlib import Path


def home_folder(environment: Mapping[str, str]) -> Path:
    """The home folder that the environment names, `~/.ganglion` where it names none."""
    return Path(environment.get("GANGLION_HOME") or "~/.ganglion").expanduser()


def engine_folder(engine: str, environment: Mapping[str, str]) -> Path:
    """Where an engine lies that was built or installed on this machine: `engines/NAME` in the home folder."""
    return home_folder(environment) / "engines" / engine
