"""kill -9, a hundred times: what was answered is there, what was cut off reads failed."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept import conversation, events

from ganglion.store.opening import open_store
from ganglion.store.upkeep import InterruptedResponse, interrupt_unfinished

KILLS = 100
START_S = 2.0


@pytest.fixture
def storm() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("storm.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    process.stdout.close()
    assert process.wait(10) == 0


def killed(storm: subprocess.Popen[str], path: Path, number: int, after_s: float) -> list[str]:
    """Run one writer and kill it; the ids of the writes that it was answered."""
    storm.stdin.write(f"{path} {number}\n")
    storm.stdin.flush()
    acknowledged: list[str] = []
    for line in storm.stdout:
        match line.split():
            case ["pid", pid]:
                pid_number = int(pid)
            case ["ack", name]:
                # From the first answer on, so that each writer was opening, writing or syncing.
                if not acknowledged:
                    threading.Timer(after_s, os.kill, (pid_number, signal.SIGKILL)).start()
                acknowledged.append(name)
            case ["gone"]:
                return acknowledged
    pytest.fail("the writers' parent ended")


@pytest.mark.timeout(180)
async def test_a_hundred_kills_lose_nothing_that_was_answered(
    storm: subprocess.Popen[str], tmp_path: Path
) -> None:
    path = tmp_path / "ganglion.db"
    store = await open_store(path)
    await store.create_conversation(conversation())
    await store.close()
    chance = random.Random(31)
    total = 0
    for number in range(KILLS):
        acknowledged = killed(storm, path, number, chance.uniform(0, 0.03))
        start_s = time.monotonic()
        store = await open_store(path)
        assert (
            await interrupt_unfinished(
                store, lambda found: InterruptedResponse(b"interrupted", tuple(events(2)))
            )
            == 1
        )
        assert time.monotonic() - start_s < START_S
        for name in acknowledged:
            kept = await store.response("ann", name)
            assert kept is not None, f"{name} was answered and is lost"
            assert kept.status == ("failed" if name.endswith("cut") else "completed")
        assert len(await store.events("ann", f"{number}-cut")) == 3
        total += len(acknowledged)
        await store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (responses,) = connection.execute(
            "SELECT count(*) FROM responses WHERE status = 'completed'"
        ).fetchone()
        (items,) = connection.execute("SELECT count(*) FROM items").fetchone()
        assert responses == items, "a response and its item are one commit"
        assert responses >= total - KILLS
    connection.close()
    assert total > 3 * KILLS, "the writers hardly wrote"
