"""The index of model files: what it remembers, what it forgets, and what it survives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ganglion.registry.stores import index
from ganglion.registry.stores.finder import StoreRoot, scan_stores
from ganglion.registry.stores.index import FILE_NAME, FileIndex
from ganglion.registry.stores.stored_models import StoredModel
from support.model_files import gguf, model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("One", "Two"):
        (folder / f"{name}.gguf").write_bytes(gguf())
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def look(folder: Path, cache: Path) -> tuple[StoredModel, ...]:
    return scan_stores([StoreRoot("models folder", folder)], FileIndex(cache))


def rewrite_unnoticed(file: Path, content: bytes) -> None:
    """Same size, time and inode, other content: who still sees the old one did not read."""
    status = file.stat()
    assert len(content) == status.st_size
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_known_file_is_not_read_again(folder: Path, cache: Path) -> None:
    before = look(folder, cache)
    rewrite_unnoticed(folder / "One.gguf", bytes(len(gguf())))
    assert look(folder, cache) == before


def test_an_error_is_remembered_too(folder: Path, cache: Path) -> None:
    broken = folder / "One.gguf"
    broken.write_bytes(bytes(len(gguf())))
    before = look(folder, cache)
    assert before[0].error
    rewrite_unnoticed(broken, gguf())
    assert look(folder, cache) == before


@pytest.mark.parametrize("change", ["time", "size", "inode"])
def test_a_changed_file_is_read_again(folder: Path, cache: Path, change: str) -> None:
    file = folder / "One.gguf"
    look(folder, cache)
    status = file.stat()
    other = gguf().replace(b"llama", b"other")
    match change:
        case "time":
            file.write_bytes(other)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        case "size":
            file.write_bytes(other + bytes(32))
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        case _:
            replacement = folder / "new"
            replacement.write_bytes(other)
            os.utime(replacement, ns=(status.st_atime_ns, status.st_mtime_ns))
            replacement.replace(file)
    assert [model.architecture for model in look(folder, cache)] == ["other", "llama"]


def test_what_the_system_refused_is_asked_again(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, mode: str, buffering: int) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert all("may not be read" in (model.error or "") for model in look(folder, cache))
    assert [model.error for model in look(folder, cache)] == [None, None]


DAMAGE = {
    "nothing": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "a flipped bit": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "another version": lambda content: content.replace(b"models 1", b"models 0"),
    "another program's": lambda content: b'{"models": []}',
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_or_foreign_index_is_built_anew(folder: Path, cache: Path, damage: object) -> None:
    before = look(folder, cache)
    file = cache / FILE_NAME
    good = file.read_bytes()
    file.write_bytes(damage(good))
    assert look(folder, cache) == before
    assert file.read_bytes() == good


def test_an_index_of_another_shape_under_a_right_checksum_is_ignored(folder: Path, cache: Path) -> None:
    before = look(folder, cache)
    body = b"\x81\xa1a\x01"
    (cache / FILE_NAME).write_bytes(index._MAGIC + index._checksum(body) + body)
    assert look(folder, cache) == before


def test_an_index_that_cannot_be_is_done_without(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "taken" / FILE_NAME).mkdir(parents=True)
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / FILE_NAME)
    for place in ("file", "taken", "piped"):
        assert len(look(folder, tmp_path / place)) == 2
    assert [file.name for file in (tmp_path / "taken").iterdir()] == [FILE_NAME]


def test_an_index_beyond_measure_is_not_read(folder: Path, cache: Path) -> None:
    before = look(folder, cache)
    with (cache / FILE_NAME).open("r+b") as sparse:
        sparse.truncate(1 << 40)
    assert look(folder, cache) == before
    assert (cache / FILE_NAME).stat().st_size < 10_000


def test_it_keeps_what_others_learnt_and_stays_small(
    folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "ENTRIES_LIMIT", 5)
    known = FileIndex(cache)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    for number in range(4):
        (other_folder / f"{number}.gguf").write_bytes(model("other"))
    look(other_folder, cache)
    scan_stores([StoreRoot("models folder", folder)], known)
    kept = index._load(cache / FILE_NAME)
    assert len(kept) == 5
    assert {str(folder / "One.gguf"), str(folder / "Two.gguf")} <= kept.keys()


SCAN_OFTEN = """
import sys
from pathlib import Path
from ganglion.registry.stores.finder import StoreRoot, scan_stores
from ganglion.registry.stores.index import FileIndex
cache, folder = map(Path, sys.argv[1:])
for number in range(30):
    (folder / f"{number}.gguf").write_bytes((folder / "One.gguf").read_bytes())
    assert len(scan_stores([StoreRoot("folder", folder)], FileIndex(cache))) == number + 2
"""


def test_several_processes_write_one_index_and_it_is_whole_at_any_time(tmp_path: Path, cache: Path) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
        (folder / "One.gguf").write_bytes(gguf())
    writers = [
        subprocess.Popen([sys.executable, "-c", SCAN_OFTEN, str(cache), str(folder)]) for folder in folders
    ]
    sizes = []
    while any(writer.poll() is None for writer in writers):
        if (cache / FILE_NAME).exists():
            sizes.append(len(index._load(cache / FILE_NAME)))
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert sizes
    assert all(sizes)
    assert [file.name for file in cache.iterdir()] == [FILE_NAME]


def test_two_thousand_known_files_are_listed_without_reading_one(tmp_path: Path, cache: Path) -> None:
    content = gguf()
    files = [tmp_path / f"many/maker-{number % 20}/model-{number}.gguf" for number in range(2000)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    cold = look(tmp_path / "many", cache)
    assert len(cold) == 2000
    for file in files:
        rewrite_unnoticed(file, bytes(len(content)))
    assert look(tmp_path / "many", cache) == cold
