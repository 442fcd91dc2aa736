"""A server whose disk is full, or cannot be written: it starts, and answers what nobody keeps."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ganglion.core.errors import StorageFull, StoreUnusable
from ganglion.server.life import storage
from ganglion.server.life.storage import StoreTarget, open_store
from ganglion.sessions.archive import SessionFolder
from ganglion.store.response_store import StoredResponse
from ganglion.wire.seal import HmacSeal
from support.disks import mounted, why_no_mounts
from support.real_node import running_node
from support.waiting import until

pytestmark = pytest.mark.skipif(bool(why_no_mounts()), reason=f"no tmpfs can be mounted: {why_no_mounts()}")

RESPONSE = StoredResponse(
    tenant="ann", id="r", created_s=1, model="m", status="completed", body=b"{}", input_items=b"[]"
)


@contextmanager
def full_disk(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A disk without a byte left, and the file to remove so that there are some."""
    with mounted(folder, "-t", "tmpfs", "-o", "size=4m", "none") as disk:
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
        yield disk, ballast


def statuses(url: str) -> list[object]:
    """What a chat, a response that nobody keeps and one that is kept get."""
    message = {"role": "user", "content": "Hello"}
    asked: list[tuple[str, dict[str, object]]] = [
        ("/v1/chat/completions", {"messages": [message]}),
        ("/v1/responses", {"input": "Hello", "store": False}),
        ("/v1/responses", {"input": "Hello"}),
    ]
    answers = [httpx.post(url + path, json={"model": "echo", **body}) for path, body in asked]
    return [each.status_code if each.is_success else each.json()["error"]["code"] for each in answers]


def test_a_node_on_a_full_disk_starts_and_keeps_again_when_there_is_room(tmp_path: Path) -> None:
    with (
        full_disk(tmp_path / "disk") as (disk, ballast),
        running_node(tmp_path, "--engine", "echo", GANGLION_HOME=str(disk / "home")) as node,
    ):
        assert statuses(node.url) == [200, 200, "storage_full"]
        assert "the store cannot be opened" in (tmp_path / "node.log").read_text()
        ballast.unlink()
        assert statuses(node.url) == [200, 200, 200]


def test_a_node_whose_home_cannot_be_written_starts(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "ro", "none") as disk,
        running_node(tmp_path, "--engine", "echo", GANGLION_HOME=str(disk / "home")) as node,
    ):
        assert statuses(node.url) == [200, 200, "store_unusable"]


async def test_a_store_that_could_not_be_opened_is_opened_later_and_its_seal_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "REOPEN_S", 0.02)
    with full_disk(tmp_path / "disk") as (disk, ballast):
        async with open_store(StoreTarget(disk / "data" / "ganglion.db")) as state:
            assert state.store is not None
            before = state.seal.of("ann").seal(b"sealed before")
            with pytest.raises(StorageFull):
                await state.store.put(RESPONSE)
            ballast.unlink()
            kept = HmacSeal(await state.store.secret(storage.SEAL)).of("ann")
            await until(lambda: kept.open(state.seal.of("ann").seal(b"sealed after")) is not None, 10.0)
            assert state.seal.of("ann").open(before) == b"sealed before"
            await state.store.put(RESPONSE)


async def test_a_place_that_somebody_named_and_that_needs_a_person_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "ro", "none") as disk:
        place = disk / "ganglion.db"
        with pytest.raises(StoreUnusable):
            async with open_store(StoreTarget(place)):
                pass
        async with open_store(StoreTarget(place, is_asked_for=False)) as state:
            assert state.store is not None


def test_a_folder_of_sessions_that_cannot_be_made_is_empty_until_one_is_kept(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as (disk, ballast):
        folder = SessionFolder(disk / "data" / "sessions", 2**20)
        assert folder.open() == []
        with pytest.raises(StorageFull):
            folder.write("sess_" + "0" * 32, b"a session")
        ballast.unlink()
        folder.write("sess_" + "0" * 32, b"a session")
        assert folder.read("sess_" + "0" * 32) == b"a session"
