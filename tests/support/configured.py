"""A Config with some keys set."""

from collections.abc import Mapping

from ganglion.config import Config, load, settings_from


def configured(values: Mapping[str, object]) -> Config:
    """The defaults, with these values by their dotted keys."""
    return load(None, {}, settings_from(values, "the test"))
