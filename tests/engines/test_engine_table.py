"""The table of engines names every engine that can be configured."""

from typing import get_args

from ganglion.engines.table import DEFAULT_ENGINE, ENGINES, EngineName


def test_every_engine_can_be_configured_and_built() -> None:
    assert set(get_args(EngineName)) == set(ENGINES)
    assert DEFAULT_ENGINE in ENGINES
    for kind in ENGINES.values():
        assert callable(kind.load())
