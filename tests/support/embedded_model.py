"""The embedded model's file, and engines that are open for as long as a block runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ganglion.core.engine import ManagedEngine
from ganglion.registry.hub.embedded import SMOLLM2, EmbeddedFile, find


def embedded_model() -> EmbeddedFile:
    """Where it is; tests that can do without it ask `find` themselves, and are skipped."""
    found = find(SMOLLM2, Path("nowhere"))
    assert found is not None, "make setup installs the embedded model"
    return found


@asynccontextmanager
async def kept_open(engine: ManagedEngine) -> AsyncIterator[None]:
    """Open it, and close it however the block ends."""
    await engine.open()
    try:
        yield
    finally:
        await engine.close()
