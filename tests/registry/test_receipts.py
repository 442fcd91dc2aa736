"""Whether a model file is still what it was: trusted while unchanged, else hashed; repaired by a pull."""

import hashlib
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ganglion.core.errors import LoadFailed
from ganglion.registry.files.receipts import Receipts, UnknownDigest, VerifiedFile, digest_of_store
from ganglion.registry.hub.client import Hub
from ganglion.registry.hub.flights import FlightCancelled
from support.hub_server import HubServer

CONTENT = random.Random(1).randbytes(50_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REPO = "org/tiny-GGUF"


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(tmp_path / "home" / "cache" / "receipts.json")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with HubServer() as hub:
        hub.add(REPO, {"tiny-Q4_0.gguf": CONTENT})
        yield hub


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, receipts: Receipts) -> Hub:
    return Hub(server.url, None, tmp_path / "hub", False, receipts=receipts)


def pull(hub: Hub, *, is_full: bool = False) -> Path:
    return hub.fetch(hub.find(REPO, None), lambda done, total: None, lambda: False, is_full=is_full)


def flip(path: Path, offset: int, *, is_mtime_kept: bool) -> None:
    before = path.stat()
    # Where clocks of file systems tick slowly, two writes within a tick have one time.
    time.sleep(0.005)
    descriptor = os.open(path, os.O_RDWR)
    os.pwrite(descriptor, bytes([os.pread(descriptor, 1, offset)[0] ^ 0x10]), offset)
    os.close(descriptor)
    if is_mtime_kept:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_flipped_byte_is_found_in_a_hundred_places_and_a_pull_repairs_it(
    hub: Hub, receipts: Receipts, server: HubServer
) -> None:
    path = pull(hub)
    places = random.Random(2).sample(range(len(CONTENT)), 100)
    for number, offset in enumerate(places):
        is_mtime_kept = number % 2 == 0
        flip(path, offset, is_mtime_kept=is_mtime_kept)
        with pytest.raises(LoadFailed, match="is damaged") as raised:
            receipts.verify(path, is_full=is_mtime_kept)
        assert raised.value.hint == "Fetch it again with `ganglion models pull org/tiny-GGUF:tiny-Q4_0.gguf`."
        assert pull(hub) == path
        assert path.read_bytes() == CONTENT
        assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=False)
    assert len(server.gets("cdn")) == 101


def test_a_full_pull_finds_what_the_file_s_times_hide(hub: Hub, server: HubServer) -> None:
    path = pull(hub)
    flip(path, 7, is_mtime_kept=True)
    pull(hub)
    assert path.read_bytes() != CONTENT
    pull(hub, is_full=True)
    assert path.read_bytes() == CONTENT
    assert len(server.gets("cdn")) == 2


def test_offline_a_damaged_file_is_an_error_and_not_a_model(hub: Hub, receipts: Receipts) -> None:
    path = pull(hub)
    flip(path, 7, is_mtime_kept=False)
    offline = Hub(hub.endpoint, None, hub.cache, True, receipts=receipts)
    with pytest.raises(LoadFailed, match="is damaged"):
        pull(offline)


def test_a_file_is_hashed_when_its_size_time_or_inode_changed_and_only_then(
    hub: Hub, receipts: Receipts
) -> None:
    path = pull(hub)
    blob = path.resolve()
    assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=False)
    assert receipts.verify(path, is_full=True) == VerifiedFile(path, SHA256, is_hashed=True)
    os.utime(blob, ns=(1, 1))
    assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=True)
    assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=False)
    copy = blob.with_suffix(".copy")
    copy.write_bytes(CONTENT)
    os.utime(copy, ns=(1, 1))
    copy.replace(blob)
    assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=True)
    with blob.open("ab") as file:
        file.write(b"more")
    os.utime(blob, ns=(1, 1))
    with pytest.raises(LoadFailed, match="is damaged"):
        receipts.verify(path, is_full=False)


def test_files_of_other_programs_are_verified_by_the_name_their_store_gave_them(
    receipts: Receipts, tmp_path: Path
) -> None:
    ollama = tmp_path / "ollama" / "blobs" / f"sha256-{SHA256}"
    shared = tmp_path / "hf" / "blobs" / "ab" / ("ab" + "0" * 62)
    own = tmp_path / "hf" / "models--org--repo" / "blobs" / SHA256
    link = tmp_path / "hf" / "models--org--repo" / "snapshots" / ("c" * 40) / "sub" / "m.gguf"
    for file in (ollama, shared, own, link):
        file.parent.mkdir(parents=True)
    ollama.write_bytes(CONTENT)
    shared.write_bytes(CONTENT)
    own.symlink_to(Path("../../blobs/ab") / shared.name)
    link.symlink_to(Path("../../../blobs") / SHA256)
    assert digest_of_store(shared) is None
    assert digest_of_store(tmp_path / "some" / "blobs" / SHA256) is None
    for path in (ollama, link, own):
        assert digest_of_store(path) == SHA256
        assert receipts.verify(path, is_full=True) == VerifiedFile(path, SHA256, is_hashed=True)
    flip(ollama, 3, is_mtime_kept=True)
    with pytest.raises(LoadFailed, match="is damaged"):
        receipts.verify(ollama, is_full=True)


def test_what_nothing_is_known_of_is_said_to_be_unknown(receipts: Receipts, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(CONTENT)
    assert receipts.verify(path, is_full=True) == UnknownDigest(path)
    assert receipts.verify(path, is_full=False, digest=SHA256) == VerifiedFile(path, SHA256, is_hashed=True)
    with pytest.raises(LoadFailed, match="is damaged"):
        receipts.verify(path, is_full=True, digest="0" * 64)
    with pytest.raises(LoadFailed, match="could not be read"):
        receipts.verify(tmp_path / "gone.gguf", is_full=True, digest=SHA256)


def test_hashing_says_how_far_it_is_and_can_be_stopped(receipts: Receipts, tmp_path: Path) -> None:
    path = tmp_path / f"sha256-{hashlib.sha256(bytes(3_000_000)).hexdigest()}"
    path.write_bytes(bytes(3_000_000))
    reports: list[tuple[int, int]] = []
    receipts.verify(path, is_full=True, report=lambda done, total: reports.append((done, total)))
    assert reports == [(1 << 20, 3_000_000), (2 << 20, 3_000_000), (3_000_000, 3_000_000)]

    def stop() -> None:
        raise FlightCancelled

    with pytest.raises(FlightCancelled):
        receipts.verify(path, is_full=True, check=stop)


@pytest.mark.parametrize("content", [b"", b"{", b'{"/x": {}}', b"\xff\xfe", b"[]"])
def test_a_damaged_file_of_receipts_costs_a_hashing_and_nothing_else(
    content: bytes, receipts: Receipts, tmp_path: Path
) -> None:
    file = tmp_path / "home" / "cache" / "receipts.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    path = tmp_path / f"sha256-{SHA256}"
    path.write_bytes(CONTENT)
    assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=True)
    assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=False)


def test_a_home_that_cannot_be_written_costs_a_hashing_each_time(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    receipts = Receipts(tmp_path / "home" / "cache" / "receipts.json")
    path = tmp_path / f"sha256-{SHA256}"
    path.write_bytes(CONTENT)
    for _ in range(2):
        assert receipts.verify(path, is_full=False) == VerifiedFile(path, SHA256, is_hashed=True)


def test_receipts_written_at_once_are_all_kept_and_those_of_gone_files_are_not(tmp_path: Path) -> None:
    file = tmp_path / "receipts.json"
    paths = [tmp_path / f"{number}.gguf" for number in range(40)]
    for path in paths:
        path.write_bytes(CONTENT)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: Receipts(file).remember(path, SHA256), paths))
    assert all(
        Receipts(file).verify(path, is_full=False) == VerifiedFile(path, SHA256, False) for path in paths
    )
    paths[0].unlink()
    Receipts(file).remember(paths[1], SHA256)
    assert str(paths[0]) not in file.read_text()
    assert str(paths[2]) in file.read_text()
