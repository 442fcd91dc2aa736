"""The power is cut: what the disk holds at that moment has everything that was answered.

A writer on an ext4 image is stopped, and the image is copied: the copy has what the kernel had sent to the
disk, and nothing of what still lay in its caches. A disk's own cache is not simulated.
"""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ganglion.store.opening import open_store
from support.disks import make_image, mounted, why_no_loops

CUTS = 10


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
        time.sleep(0.001)


class Acknowledged:
    """What a storm has printed so far."""

    def __init__(self, storm: subprocess.Popen[bytes]) -> None:
        self._descriptor = storm.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._text = b""

    def words(self, kind: str) -> list[str]:
        while True:
            try:
                more = os.read(self._descriptor, 65536)
            except BlockingIOError:
                break
            assert more, "the writers' parent ended"
            self._text += more
        lines = [line.split() for line in self._text.decode().split("\n")[:-1]]
        return [line[1] for line in lines if line[0] == kind]


async def what_is_lost(data: Path, acknowledged: list[str]) -> list[str]:
    store = await open_store(data / "ganglion.db")
    lost = [name for name in acknowledged if await store.response("ann", name) is None]
    await store.close()
    with sqlite3.connect(data / "ganglion.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    return lost


@pytest.mark.skipif(bool(why_no_loops()), reason=f"no image can be mounted: {why_no_loops()}")
def test_ten_power_cuts_lose_nothing_that_was_answered(tmp_path: Path) -> None:
    image, copy = tmp_path / "disk.img", tmp_path / "copy.img"
    make_image(image)
    chance = random.Random(32)
    # The journal is written when somebody syncs, not every few seconds: the copy takes a moment too.
    with mounted(tmp_path / "disk", "-o", "loop,commit=300", image) as disk:
        # Made on the disk itself, by the writer that is cut: also its folder must have become durable.
        path = disk / "home" / "data" / "ganglion.db"
        storm = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("storm.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        storm.stdin.write(f"{path} 0\n".encode())
        printed = Acknowledged(storm)
        while not printed.words("ack"):
            time.sleep(0.005)
        (pid,) = map(int, printed.words("pid"))
        try:
            counts = []
            for _ in range(CUTS):
                time.sleep(chance.uniform(0.01, 0.06))
                stop(pid)
                acknowledged = printed.words("ack")
                subprocess.run(["cp", "--sparse=always", image, copy], check=True)
                os.kill(pid, signal.SIGCONT)
                with mounted(tmp_path / "after", "-o", "loop", copy) as after:
                    assert asyncio.run(what_is_lost(after / "home" / "data", acknowledged)) == []
                counts.append(len(acknowledged))
            assert len(set(counts)) == CUTS, "between two cuts nothing was written"
        finally:
            os.kill(pid, signal.SIGKILL)
            storm.kill()
            storm.wait(10)
            storm.stdin.close()
            storm.stdout.close()
