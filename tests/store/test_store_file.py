"""The file: who may read it, what is refused, and several stores on one."""

import asyncio
import os
import sqlite3
import stat
import time
from pathlib import Path

import pytest
from kept import conversation, events, items, response

from ganglion.core.errors import StoreUnusable
from ganglion.store.opening import open_store
from ganglion.store.response_store import Retention
from ganglion.store.schema import VERSION
from ganglion.store.upkeep import InterruptedResponse, interrupt_unfinished


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "data" / "ganglion.db"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def read(path: Path) -> bytes:
    return path.read_bytes()


async def test_nobody_else_may_read_it(path: Path) -> None:
    store = await open_store(path)
    await store.put(response())
    for folder in (path.parent, path.parent.parent, path.with_name("ganglion.db-owners")):
        assert mode(folder) == 0o700
    for file in sorted(path.parent.glob("ganglion.db*")):
        assert mode(file) == (0o700 if file.name.endswith("owners") else 0o600)
    await store.close()


async def test_it_is_all_there_after_a_restart(path: Path) -> None:
    store = await open_store(path)
    await store.put(response(), events=events(0))
    await store.create_conversation(conversation(), items("a"))
    seal = await store.secret("seal")
    await store.close()
    store = await open_store(path)
    assert await store.response("ann", "resp_1") == response()
    assert await store.events("ann", "resp_1") == tuple(events(0))
    assert len(await store.items("ann", "conv_1")) == 1
    assert await store.secret("seal") == seal
    await store.close()


async def test_every_commit_is_synced_and_the_log_is_written_ahead(path: Path) -> None:
    store = await open_store(path)
    settings = await store._writer.run(
        lambda session: [session.rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous")]
    )
    assert settings == ["wal", 2]
    await store.close()


async def test_one_written_by_a_newer_version_is_refused(path: Path) -> None:
    await (await open_store(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    before = read(path)
    with pytest.raises(StoreUnusable, match="newer Ganglion") as refusal:
        await open_store(path)
    assert refusal.value.hint
    assert read(path) == before


async def test_another_programs_database_is_refused(path: Path) -> None:
    write(path, b"")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    with pytest.raises(StoreUnusable, match="another program"):
        await open_store(path)


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    write(path, content)
    with pytest.raises(StoreUnusable, match="damaged") as refusal:
        await open_store(path)
    assert "backup" in (refusal.value.hint or "")
    assert read(path) == content


async def test_damage_inside_is_told_and_the_rest_still_answers(path: Path) -> None:
    store = await open_store(path)
    for number in range(200):
        await store.put(response(f"r{number}", body=b"x" * 2000))
    await store.close()
    damaged = bytearray(read(path))
    damaged[len(damaged) // 2 :] = os.urandom(len(damaged) - len(damaged) // 2)
    write(path, bytes(damaged))
    store = await open_store(path)
    results = await asyncio.gather(
        *(store.response("ann", f"r{number}") for number in range(200)), return_exceptions=True
    )
    wrong = [result for result in results if isinstance(result, BaseException)]
    assert wrong
    assert all(isinstance(result, StoreUnusable) for result in wrong)
    await store.close()
    assert len(read(path)) >= len(damaged)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_file_that_cannot_be_written_is_refused(path: Path) -> None:
    await (await open_store(path)).close()
    os.chmod(path, 0o400)  # noqa: PTH101
    with pytest.raises(StoreUnusable):
        await open_store(path)


async def test_a_place_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="could not be opened"):
        await open_store(tmp_path)


async def test_two_stores_on_one_file_see_each_other(path: Path) -> None:
    one, other = await open_store(path), await open_store(path)
    writes = [
        store.put(response(f"{name}{n}")) for name, store in (("a", one), ("b", other)) for n in range(100)
    ]
    await asyncio.gather(*writes)
    assert await one.response("ann", "b99") == response("b99")
    assert await other.response("ann", "a99") == response("a99")
    await one.close()
    await other.close()


async def test_only_what_a_closed_or_dead_store_left_unfinished_is_interrupted(place: str) -> None:
    if place == ":memory:":
        pytest.skip("memory has one store")
    gone, living, here = [await open_store(place) for _ in range(3)]
    await gone.put(response("cut", status="in_progress"), events=events(0, 1, 2))
    await gone.put(response("waiting", status="queued", tenant="bob"))
    await gone.put(response("done"))
    await living.put(response("running", status="in_progress"))
    assert await here.abandoned() == ()
    await gone.close()
    # A database server notices a moment later than the client that the connection was closed.
    deadline_s = time.monotonic() + 5
    while not (abandoned := await here.abandoned()) and time.monotonic() < deadline_s:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    numbers = {found.response.id: found.last_sequence_number for found in abandoned}
    assert numbers == {"cut": 2, "waiting": None}

    ending = InterruptedResponse(b'{"status":"failed"}', tuple(events(3)))
    assert await interrupt_unfinished(here, lambda found: ending) == 2
    failed = await here.response("ann", "cut")
    assert failed == response("cut", status="failed", body=ending.body)
    assert (await here.events("ann", "cut"))[-1] == events(3)[0]
    assert await here.abandoned() == ()
    assert await here.response("ann", "done") == response("done")
    assert await living.replace(response("running"))
    await living.close()
    await here.close()


async def test_locks_of_stores_that_were_killed_do_not_pile_up(path: Path) -> None:
    living = await open_store(path)
    owners = path.with_name("ganglion.db-owners")
    write(owners / "killed", b"")
    for owner in sorted(owners.iterdir()):
        os.utime(owner, (0, 0))
    await (await open_store(path)).close()
    assert [owner.name for owner in sorted(owners.iterdir())] == [living._backend.owner]
    await living.close()
    assert sorted(owners.iterdir()) == []


async def test_a_file_that_was_swept_gives_its_room_back(path: Path) -> None:
    store = await open_store(path)
    await asyncio.gather(*(store.put(response(f"r{n}", body=b"x" * 20_000, created_s=n)) for n in range(500)))
    await store.sweep(Retention(max_bytes=100_000))
    await store.close()
    assert len(read(path)) < 5_000_000
