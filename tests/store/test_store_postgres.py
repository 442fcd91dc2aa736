"""PostgreSQL goes away and comes back, belongs to a newer version, or its driver is missing."""

import asyncio
import subprocess
import sys
import time
import traceback

import psycopg
import pytest
from kept import response

from ganglion.core.errors import StoreUnavailable, StoreUnusable
from ganglion.store.opening import open_store
from ganglion.store.schema import VERSION
from support.postgres_server import Server


async def test_a_restarted_server_is_found_again(postgres: str, postgres_server: Server) -> None:
    store = await open_store(postgres)
    await store.put(response("before"))
    assert await store.response("ann", "before") is not None
    await asyncio.to_thread(postgres_server.stop)
    try:
        for attempt in (store.put(response("during")), store.response("ann", "before")):
            with pytest.raises(StoreUnavailable) as refusal:
                await attempt
            assert refusal.value.status == 503
        with pytest.raises(StoreUnavailable, match="could not be reached"):
            await store.put(response("during"))
    finally:
        await asyncio.to_thread(postgres_server.start)
    await store.put(response("after"))
    assert await store.response("ann", "after") is not None
    assert await store.response("ann", "during") is None
    await store.close()


async def test_connections_that_broke_at_rest_cost_nobody_an_error(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.store.database_thread.IDLE_S", 0.0)
    store = await open_store(postgres)
    await store.response("ann", "warm")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'ganglion' AND pid <> pg_backend_pid()"
        )
    await store.put(response())
    assert await store.response("ann", "resp_1") == response()
    await store.close()


async def test_a_store_at_rest_keeps_telling_that_it_lives(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.store.database_thread.KEEP_S", 0.05)
    monkeypatch.setattr("ganglion.store.database_thread.IDLE_S", 0.0)
    resting, other = await open_store(postgres), await open_store(postgres)
    await resting.put(response(status="in_progress"))
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ganglion'"
        )
    deadline_s = time.monotonic() + 10
    while await other.abandoned():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    await resting.close()
    while not await other.abandoned():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    await other.close()


async def test_twenty_servers_starting_at_once_make_one_schema(postgres: str) -> None:
    stores = await asyncio.gather(*(open_store(postgres) for _ in range(20)))
    await asyncio.gather(*(store.put(response(f"r{n}")) for n, store in enumerate(stores)))
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_newer_schema_is_refused(postgres: str) -> None:
    await (await open_store(postgres)).close()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("UPDATE ganglion.schema_version SET version = %s", [VERSION + 1])
    with pytest.raises(StoreUnusable, match="newer Ganglion"):
        await open_store(postgres)


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/") as refusal:
        await open_store("postgresql://me:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2%zz@host/db", "postgresql://me:hunter2@host:port/db"]
)
async def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises((StoreUnusable, StoreUnavailable)) as refusal:
        await open_store(url)
    assert "hunter2" not in "".join(traceback.format_exception(refusal.value, limit=0))


async def test_an_address_of_another_kind_is_refused_and_is_no_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnusable, match="mysql://"):
        await open_store("mysql://me:hunter2@host/db")
    assert list(tmp_path.iterdir()) == []


def test_without_the_driver_it_says_what_to_install() -> None:
    program = """
import asyncio, sys
sys.modules["psycopg"] = None
from ganglion.core.errors import StoreUnusable
from ganglion.store.opening import open_store
try:
    asyncio.run(open_store("postgresql://localhost/db"))
except StoreUnusable as error:
    print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'ganglion[postgres]'\n"


def test_a_file_needs_no_driver() -> None:
    program = "import sys, ganglion.store.opening; print('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
