"""Every kind of store, opened empty, and the PostgreSQL server that one kind needs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_server import ABSENT, BINARIES, Server, running_server

from ganglion.store.opening import open_store
from ganglion.store.port import Store


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    if not BINARIES:
        pytest.skip(ABSENT)
    with running_server() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Server) -> str:
    """The URL of a database in which nothing is kept yet."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS ganglion CASCADE")
    return postgres_server.url


@pytest.fixture(params=["file", "memory", "postgres"])
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
