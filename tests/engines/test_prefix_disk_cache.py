"""Saved prefixes in a folder: what comes back is what was saved, or nothing."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from ganglion.engines.llama.kv import prefix_disk_cache as module
from ganglion.engines.llama.kv.prefix_disk_cache import PrefixDiskCache, read_state
from ganglion.engines.llama.kv.state_format import kv_fingerprint
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.scheduler.pool import HotPrefix
from ganglion.scheduler.prefix import digests

STAMP, OTHER_STAMP = b"s" * 16, b"t" * 16
MEBIBYTE = 2**20


def state_of(data: bytes) -> SavedState:
    state = SavedState.blank(77, len(data))
    state.cells[:] = data
    return state


def cells_of(tokens: tuple[int, ...], size: int = 1000) -> bytes:
    return (repr(tokens).encode() * size)[:size]


def opened(root: Path, stamp: bytes = STAMP, max_bytes: int = MEBIBYTE) -> PrefixDiskCache:
    subject = PrefixDiskCache(root, stamp, max_bytes)
    subject.open(most_tokens=10_000)
    return subject


def keep(subject: PrefixDiskCache, prefixes: Iterable[tuple[str, tuple[int, ...]]], size: int = 1000) -> None:
    by_number = list(prefixes)
    hot = [HotPrefix(salt, tokens, number) for number, (salt, tokens) in enumerate(by_number)]
    subject.keep(
        hot, lambda number: state_of(cells_of(by_number[number][1], size)), until_s=time.monotonic() + 60
    )


def found(subject: PrefixDiskCache, tokens: tuple[int, ...], salt: str = "") -> tuple[int, bytes] | None:
    """How much of a prompt is found, and its cells once they were checked."""
    prompt = [*tokens, 1, 2, 3]
    match = subject.match(salt, prompt, digests(salt, prompt))
    if match is None:
        return None
    state = read_state(match[0])
    if state is None:
        subject.drop(match[0])
        return None
    assert state.magic == 77
    return match[1], bytes(state.cells)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


ONE, TWO = tuple(range(100, 140)), tuple(range(200, 290))


def test_what_was_kept_is_found_by_how_a_prompt_begins_with_its_own_cells(tmp_path):
    keep(opened(tmp_path / "kv"), [("", ONE), ("", TWO)])
    again = opened(tmp_path / "kv")
    assert found(again, ONE) == (40, cells_of(ONE))
    assert found(again, TWO[:50]) == (50, cells_of(TWO))
    assert found(again, (9, *ONE)) is None


def test_another_tenant_finds_nothing(tmp_path):
    keep(opened(tmp_path), [("mine", ONE)])
    again = opened(tmp_path)
    assert found(again, ONE, "yours") is None
    assert found(again, ONE, "") is None
    assert found(again, ONE, "mine") is not None


def test_only_their_owner_can_look_at_them(tmp_path):
    keep(opened(tmp_path / "cache" / "kv"), [("", ONE)])
    (file,) = files(tmp_path)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_a_damaged_byte_anywhere_means_that_the_file_is_not_believed_and_deleted(tmp_path):
    keep(opened(tmp_path), [("", ONE)])
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for place in [*range(0, 300), *range(300, len(whole), 37), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        assert found(opened(tmp_path), ONE) is None, f"believed with byte {place} changed"
        assert not file.exists()
        file.parent.mkdir(exist_ok=True)
    file.write_bytes(whole)
    assert found(opened(tmp_path), ONE) == (40, cells_of(ONE))


@pytest.mark.parametrize("length", [0, 1, 51, 52, 200, -1])
def test_a_file_that_ends_early_or_goes_on_is_not_believed(tmp_path, length):
    keep(opened(tmp_path), [("", ONE)])
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole + b"x" if length < 0 else whole[:length])
    assert found(opened(tmp_path), ONE) is None
    assert not file.exists()


def test_what_was_damaged_after_it_was_indexed_is_noticed(tmp_path):
    keep(opened(tmp_path), [("", ONE)])
    again = opened(tmp_path)
    (file,) = files(tmp_path)
    with file.open("r+b") as stream:
        stream.seek(-5, os.SEEK_END)
        stream.write(b"x")
    assert found(again, ONE) is None
    assert not file.exists()
    assert found(again, ONE) is None


def test_a_file_of_another_model_under_our_name_is_not_believed(tmp_path):
    keep(opened(tmp_path, OTHER_STAMP), [("", ONE)])
    (foreign,) = files(tmp_path)
    ours = tmp_path / STAMP.hex()
    ours.mkdir()
    foreign.rename(ours / foreign.name)
    assert found(opened(tmp_path), ONE) is None
    assert not files(tmp_path)


def test_what_is_not_ours_is_neither_read_nor_deleted(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("keep me")
    keep(opened(tmp_path / "kv"), [("", ONE)])
    (file,) = files(tmp_path / "kv")
    file.unlink()
    file.symlink_to(secret)
    strangers = [file.parent / "notes.txt", tmp_path / "kv" / "README", file.parent / "ab"]
    for stranger in strangers:
        stranger.write_text("keep me")
    subject = opened(tmp_path / "kv", max_bytes=0)
    assert found(subject, ONE) is None
    assert all(path.read_text() == "keep me" for path in (secret, *strangers))


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="no folder of this user's"):
        opened(tmp_path / "kv")


def test_the_hottest_fit_the_budget_and_older_ones_make_room_also_those_of_other_models(tmp_path):
    keep(opened(tmp_path, OTHER_STAMP, 20_000), [("", ONE)], size=5000)
    keep(opened(tmp_path, max_bytes=20_000), [("", TWO)], size=5000)
    prefixes = [("", (number,) * 20) for number in range(10)]
    keep(opened(tmp_path, max_bytes=20_000), prefixes, size=5000)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 20_000
    again = opened(tmp_path, max_bytes=20_000)
    assert [found(again, tokens) is not None for _, tokens in prefixes] == [True] * 3 + [False] * 7
    assert found(again, TWO) is None
    assert not (tmp_path / OTHER_STAMP.hex()).exists()


def test_a_smaller_budget_keeps_the_hottest(tmp_path):
    keep(opened(tmp_path), [("", (number,) * 20) for number in range(6)], size=5000)
    smaller = opened(tmp_path, max_bytes=11_000)
    assert [found(smaller, (number,) * 20) is not None for number in range(6)] == [True] * 2 + [False] * 4


def test_a_prefix_that_is_larger_than_the_budget_is_left_out_and_costs_nothing_else(tmp_path):
    keep(opened(tmp_path, max_bytes=4000), [("", ONE)])
    keep(opened(tmp_path, max_bytes=4000), [("", TWO)], size=5000)
    assert found(opened(tmp_path, max_bytes=4000), ONE) is not None


def test_the_count_of_files_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILES", 4)
    for first in (0, 10):
        keep(opened(tmp_path), [("", (first + number,) * 20) for number in range(3)])
    assert len(files(tmp_path)) == 4


def test_a_longer_prefix_takes_the_place_of_what_it_begins_with(tmp_path):
    keep(opened(tmp_path), [("", ONE), ("other", ONE)])
    keep(opened(tmp_path), [("", ONE + TWO)])
    again = opened(tmp_path)
    assert len(files(tmp_path)) == 2
    assert found(again, ONE) == (40, cells_of(ONE + TWO))
    assert found(again, ONE, "other") == (40, cells_of(ONE))


def test_what_is_already_there_is_not_computed_or_written_again(tmp_path):
    keep(opened(tmp_path), [("", ONE)])
    (file,) = files(tmp_path)
    before = file.stat()

    def never(_: object) -> SavedState:
        raise AssertionError

    kept = opened(tmp_path).keep([HotPrefix("", ONE, 0)], never, until_s=time.monotonic() + 60)
    assert kept.prefixes == 1
    assert file.stat().st_ino == before.st_ino
    assert file.stat().st_mtime_ns > before.st_mtime_ns


def test_when_the_time_is_over_nothing_more_is_written_and_nothing_half(tmp_path, monkeypatch):
    assert opened(tmp_path).keep([HotPrefix("", ONE, 0)], lambda _: state_of(b""), until_s=0.0).prefixes == 0
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    slow = state_of(bytes(MEBIBYTE // 2))
    opened(tmp_path).keep([HotPrefix("", ONE, 0)], lambda _: slow, until_s=time.monotonic() + 0.005)
    assert not files(tmp_path)


def test_more_tokens_than_may_be_parked_are_left_on_the_shelf(tmp_path):
    keep(opened(tmp_path), [("", ONE)])
    subject = PrefixDiskCache(tmp_path, STAMP, MEBIBYTE)
    subject.open(most_tokens=39)
    assert found(subject, ONE) is None
    assert len(files(tmp_path)) == 1


SAVE_FOR_EVER = """
import sys, time
from pathlib import Path
from ganglion.engines.llama.kv.prefix_disk_cache import PrefixDiskCache
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.scheduler.pool import HotPrefix

subject = PrefixDiskCache(Path(sys.argv[1]), b"s" * 16, 2**30)
subject.open(10_000)
state = SavedState.blank(77, 4 * 2**20)
state.cells[:] = bytes(4 * 2**20)
print("saving", flush=True)
hot = (HotPrefix("", (number,) * 20, 0) for number in range(int(sys.argv[2]), 10**9))
subject.keep(hot, lambda _: state, time.monotonic() + 60)
"""


def test_a_kill_at_any_moment_leaves_no_bad_file_under_a_final_name(tmp_path, monkeypatch):
    for number in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path), str(1000 * number)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "saving\n"
            time.sleep(0.03 + 0.007 * number)
            process.send_signal(signal.SIGKILL)
    finished = [path for path in files(tmp_path) if path.suffix != ".part"]
    assert finished
    again = opened(tmp_path, max_bytes=2**30)
    assert [path for path in files(tmp_path) if path.suffix != ".part"] == finished, "all were believed"
    assert all(read_state(each) is not None for each in again._prefixes.values())
    monkeypatch.setattr(module, "STALE_S", 0.0)
    opened(tmp_path, max_bytes=2**30)
    assert files(tmp_path) == finished, "what was not finished is cleaned away"


def test_a_model_that_changed_in_any_way_has_another_name(tmp_path):
    model, library = tmp_path / "m.gguf", tmp_path / "lib.so"
    library.write_bytes(b"code")
    model.write_bytes(bytes(10_000_000))
    os.utime(model, ns=(1, 1))
    first = kv_fingerprint(model, library, "f16", 0)
    assert kv_fingerprint(model, library, "f16", 0) == first
    assert kv_fingerprint(model, library, "q8_0", 0) != first
    assert kv_fingerprint(model, library, "f16", 1) != first
    with model.open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"other weights")
    os.utime(model, ns=(1, 1))
    assert kv_fingerprint(model, library, "f16", 0) != first
    library.write_bytes(b"more code")
    assert kv_fingerprint(model, library, "f16", 0) != kv_fingerprint(model, model, "f16", 0)


def test_every_part_of_a_model_counts(tmp_path):
    parts = [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        part.write_bytes(bytes(1000))
        os.utime(part, ns=(1, 1))
    first = kv_fingerprint(parts[0], parts[0], "f16", 0)
    os.utime(parts[2], ns=(2, 2))
    assert kv_fingerprint(parts[0], parts[0], "f16", 0) != first
