"""Pictures that a worker keeps: those of requests, those that just came, and of the others what has room."""

import hashlib
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from ganglion.core.errors import GanglionError, InvalidValue, LoadFailed
from ganglion.engines.llama.native.mtmd import Stretch
from ganglion.engines.llama.native.picture_rows import PictureRows
from ganglion.engines.llama.worker import pictures
from ganglion.engines.llama.worker.pictures import PictureRead, PictureReader
from ganglion.engines.supervision.ipc import FromWorker, ImagePlaced, PlaceImage

ROWS = 8


class PlayedLayout:
    """What a picture became; it must be freed once."""

    def __init__(self, width: int, *, is_whole: bool) -> None:
        self.stretches = (Stretch(tokens=(7,)), Stretch(rows=width, positions=width, is_whole=is_whole))
        self.row_count = width
        self.freed = 0

    def free(self) -> None:
        self.freed += 1


class PlayedProjector:
    """As many rows as a picture is wide."""

    sees = True

    def __init__(self, *, is_whole: bool = False, width: int = ROWS) -> None:
        self.layouts: list[PlayedLayout] = []
        self._is_whole = is_whole

    def lay_out(self, width: int, height: int, rgb: bytes | None) -> PlayedLayout:
        if height == 0:
            raise InvalidValue("too flat")
        self.layouts.append(PlayedLayout(width, is_whole=self._is_whole))
        return self.layouts[-1]

    def encode(self, layout: PlayedLayout) -> tuple[PictureRows, ...]:
        return (PictureRows(np.zeros((layout.row_count, 4), np.float32)),)


Heard = SimpleQueue[FromWorker | PictureRead | GanglionError]


def reader(projector: PlayedProjector, tmp_path: Path) -> tuple[PictureReader, Heard]:
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(b"weights")
    heard: Heard = SimpleQueue()
    return PictureReader(
        projector,  # type: ignore[arg-type]
        str(file),
        most_rows=64,
        send=heard.put,
        refuse=lambda _, error: heard.put(error),
        report=heard.put,
    ), heard


def place(
    subject: PictureReader, heard: Heard, name: str, *, tenant: str = "", width: int = ROWS
) -> list[int]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    subject.ask(PlaceImage(1, digest, width, 1, b"pixels", tenant=tenant))
    answer = heard.get(timeout=5)
    if isinstance(answer, GanglionError):
        raise answer
    assert isinstance(answer, ImagePlaced)
    return answer.ids


def is_there(subject: PictureReader, heard: Heard, name: str, *, tenant: str = "") -> bool:
    subject.ask(PlaceImage(2, hashlib.sha256(name.encode()).hexdigest(), tenant=tenant))
    answer = heard.get(timeout=5)
    assert isinstance(answer, ImagePlaced)
    return bool(answer.ids)


def test_ids_are_the_picture_s_own_and_the_same_wherever_it_is_placed(tmp_path: Path) -> None:
    subject, heard = reader(PlayedProjector(), tmp_path)
    one, other = place(subject, heard, "one"), place(subject, heard, "other")
    assert one[0] == other[0] == 7, "marker tokens are tokens"
    assert all(token < -1 for token in (*one[1:], *other[1:]))
    assert not set(one[1:]) & set(other[1:])
    again, heard_again = reader(PlayedProjector(), tmp_path)
    assert place(again, heard_again, "one") == one


def test_a_tenant_has_its_own_pictures(tmp_path: Path) -> None:
    subject, heard = reader(PlayedProjector(), tmp_path)
    place(subject, heard, "one", tenant="a")
    assert is_there(subject, heard, "one", tenant="a")
    assert not is_there(subject, heard, "one", tenant="b")
    assert subject.use("b", hashlib.sha256(b"one").hexdigest()) is None


def test_what_is_used_or_fresh_stays_and_the_rest_goes_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projector = PlayedProjector()
    subject, heard = reader(projector, tmp_path)
    monkeypatch.setattr(pictures, "KEPT_BYTES", 0)
    place(subject, heard, "one")
    place(subject, heard, "two")
    assert is_there(subject, heard, "one"), "its request has not come yet"
    kept = subject.use("", hashlib.sha256(b"one").hexdigest())
    assert kept is not None
    monkeypatch.setattr(pictures, "_FRESH_S", -1.0)
    place(subject, heard, "three")
    assert is_there(subject, heard, "one")
    subject.read(kept)
    read = heard.get(timeout=5)
    assert isinstance(read, PictureRead)
    assert read.error is None
    assert [len(rows) for rows in kept.rows] == [ROWS]
    subject.leave(kept)
    assert not is_there(subject, heard, "one")
    assert projector.layouts[0].freed == 1


def test_more_than_there_is_room_for_at_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projector = PlayedProjector()
    subject, heard = reader(projector, tmp_path)
    monkeypatch.setattr(pictures, "MOST_BYTES", 1)
    with pytest.raises(GanglionError, match="wait to be read"):
        place(subject, heard, "one")
    assert projector.layouts[0].freed == 1


def test_a_picture_that_no_batch_could_hold_whole_is_refused(tmp_path: Path) -> None:
    projector = PlayedProjector(is_whole=True)
    subject, heard = reader(projector, tmp_path)
    assert place(subject, heard, "small", width=64)
    with pytest.raises(InvalidValue, match="at once"):
        place(subject, heard, "large", width=65)
    assert projector.layouts[1].freed == 1


def test_a_projector_that_reads_nothing_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    class Broken(PlayedProjector):
        def lay_out(self, width: int, height: int, rgb: bytes | None) -> PlayedLayout:
            raise InvalidValue("no picture")

    subject, _ = reader(Broken(), tmp_path)
    with pytest.raises(LoadFailed):
        subject.probe()
