"""A disk that is full, a disk that fails, a process without handles: typed errors, and then on as before."""

import asyncio
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from kept import response

from ganglion.core.errors import Overloaded, StorageFull, StoreUnavailable
from ganglion.store import database_thread
from ganglion.store.opening import open_store
from ganglion.store.response_store import Retention
from support.disks import mounted, why_no_mounts

BIG = b"x" * 50_000


def integrity(path: Path) -> list[tuple[str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()


@pytest.mark.skipif(bool(why_no_mounts()), reason=f"no tmpfs can be mounted: {why_no_mounts()}")
async def test_a_full_disk_is_told_and_forgotten_when_there_is_room_again(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=2m", "none") as disk:
        path = disk / "ganglion.db"
        store = await open_store(path)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(600_000))
        kept = []
        with pytest.raises(StorageFull) as full:
            for number in range(100):
                await store.put(response(f"r{number}", body=BIG))
                kept.append(f"r{number}")
        assert full.value.status == 507
        assert "store.max_mb" in (full.value.hint or "")
        refused = await asyncio.gather(
            *(store.put(response(f"more{n}", body=BIG)) for n in range(20)), return_exceptions=True
        )
        assert {type(result) for result in refused} == {StorageFull}
        assert kept
        for name in kept:
            assert await store.response("ann", name) is not None
        ballast.unlink()
        await store.put(response("after", body=BIG))
        assert await store.response("ann", "after") is not None
        await store.sweep(Retention(max_bytes=0))
        await store.close()
        assert integrity(path) == [("ok",)]


PROGRAM = """
import asyncio, json, sys
from kept import response
from ganglion.core.errors import GanglionError
from ganglion.store.opening import open_store

async def main(path):
    kept, failed = [], []
    store = None
    for number in range(300):
        try:
            store = store or await open_store(path)
            await store.put(response(f"r{number}", body=b"x" * 3_000))
            kept.append(f"r{number}")
        except GanglionError as error:
            failed.append(error.code)
    if store:
        await store.close()
    print(json.dumps([kept, failed]))

asyncio.run(main(sys.argv[1]))
"""


def traced(path: Path, *expressions: str) -> subprocess.CompletedProcess[str]:
    words = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"]
    for expression in expressions:
        words += ["-e", expression]
    return subprocess.run(
        [*words, sys.executable, "-c", PROGRAM, path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("calls", "error", "code"),
    [
        ("pwrite64", "ENOSPC", "storage_full"),
        ("pwrite64", "EIO", "store_unavailable"),
        ("fsync,fdatasync", "EIO", "store_unavailable"),
    ],
)
async def test_calls_that_fail_cost_their_own_write_only(
    tmp_path: Path, calls: str, error: str, code: str
) -> None:
    path = tmp_path / "ganglion.db"
    await (await open_store(path)).close()
    # Every 37th call, so that pages, commits and checkpoints each have their turn.
    rule = f"inject={calls}:error={error}:when=30+37"
    done = await asyncio.to_thread(traced, path, f"trace={calls}", rule)
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        pytest.skip(f"nothing can be traced: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    kept, failed = json.loads(done.stdout)
    assert code in failed
    assert len(failed) < len(kept)
    store = await open_store(path)
    for name in kept:
        assert await store.response("ann", name) is not None, f"{name} was answered and is lost"
    await store.close()
    assert integrity(path) == [("ok",)]


async def test_a_process_without_handles_is_told_and_goes_on_later(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(StoreUnavailable):
            await open_store(tmp_path / "ganglion.db")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    store = await open_store(tmp_path / "ganglion.db")
    await store.put(response())
    await store.close()


async def test_a_file_that_another_process_holds_is_told_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.store.sqlite.BUSY_S", 0.05)
    path = tmp_path / "ganglion.db"
    store = await open_store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another process"):
        await store.put(response())
    assert await store.response("ann", "resp_1") is None
    other.execute("COMMIT")
    other.close()
    await store.put(response())
    await store.close()


async def test_what_waits_for_a_slow_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_thread, "QUEUE_LIMIT", 10)
    store = await open_store(tmp_path / "ganglion.db")
    results = await asyncio.gather(*(store.put(response(f"r{n}")) for n in range(50)), return_exceptions=True)
    refused = [result for result in results if result is not None]
    assert refused
    assert all(isinstance(result, Overloaded) for result in refused)
    assert len(refused) < 50
    await store.close()
