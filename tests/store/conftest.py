"""Every kind of store, opened empty."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ganglion.store.database import Store
from ganglion.store.opening import open_store


@pytest.fixture(params=["file", "memory", pytest.param("postgres", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "file":
            return str(tmp_path / "data" / "ganglion.db")
        case "memory":
            return ":memory:"
        case _:
            url: str = request.getfixturevalue("postgres")
            return url


@pytest.fixture
async def store(place: str) -> AsyncIterator[Store]:
    store = await open_store(place)
    yield store
    await store.close()
