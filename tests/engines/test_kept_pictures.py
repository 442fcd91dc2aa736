"""The pictures that vLLM's worker keeps: whose they are, how long they wait, and what has no room."""

import queue
from dataclasses import dataclass, field
from typing import Any

import pytest

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue, Overloaded, UnsupportedParameter
from ganglion.engines.supervision.ipc import FromWorker, ImagePlaced, PlaceImage
from ganglion.engines.vllm.worker import kept_pictures
from ganglion.engines.vllm.worker.kept_pictures import KeptPictures

MIB = 2**20


@dataclass
class Played:
    """A picture whose two rows stand between two signs."""

    size_bytes: int
    tokens: list[int] = field(default_factory=lambda: [5, 9, 9, 6])
    is_row: list[bool] = field(default_factory=lambda: [False, True, True, False])


class PlayedProcessor:
    """Makes pictures of as many MiB as they are wide."""

    most = 2

    def __init__(self) -> None:
        self.processed: list[str] = []

    def process(self, width: int, height: int, rgb: bytes, identifier: str) -> Played:
        if rgb == b"odd":
            raise InvalidValue("no")
        if rgb == b"bad":
            raise KeyError("gone")
        self.processed.append(identifier)
        return Played(width * MIB)


class Asked:
    """Pictures, and the answers in the order in which they came."""

    def __init__(self) -> None:
        self.processor: Any = PlayedProcessor()
        self.answers: queue.Queue[FromWorker | GanglionError] = queue.Queue()
        self.pictures = KeptPictures(
            self.processor, self.answers.put, lambda _, error: self.answers.put(error)
        )

    def place(self, digest: str, *, tenant: str = "", mib: int = 1, rgb: bytes = b"rgb") -> list[int]:
        self.pictures.ask(PlaceImage(1, digest, mib, 1, rgb, tenant=tenant))
        found = self.answers.get(timeout=10)
        if isinstance(found, GanglionError):
            raise found
        assert isinstance(found, ImagePlaced)
        return found.ids

    def has(self, digest: str, *, tenant: str = "") -> bool:
        return bool(self.place(digest, tenant=tenant, rgb=b""))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(kept_pictures, "monotonic", lambda: now[0])
    return now


def test_signs_keep_their_ids_and_each_row_of_each_picture_has_its_own() -> None:
    asked = Asked()
    one, other = asked.place("a"), asked.place("b")
    assert (one[0], one[-1]) == (5, 6)
    assert len({*one[1:3], *other[1:3]}) == 4
    assert max(*one[1:3], *other[1:3]) < -1
    assert asked.place("a") == one
    assert len(asked.processor.processed) == 2, "what is there is not processed again"


def test_a_picture_is_there_for_its_own_tenant_alone() -> None:
    asked = Asked()
    ids = asked.place("a", tenant="one")
    assert asked.has("a", tenant="one")
    assert not asked.has("a", tenant="two")
    assert asked.place("a", tenant="two") == ids
    assert len(set(asked.processor.processed)) == 2, "vLLM's caches tell them apart"
    assert asked.pictures.of_request("one", [(3, "a")])[0][0] == 3
    with pytest.raises(Overloaded):
        asked.pictures.of_request("three", [(3, "a")])


def test_what_waits_for_its_request_stays_and_then_the_least_recently_used_goes(clock: list[float]) -> None:
    asked = Asked()
    for name in "abc":
        asked.place(name, mib=100)
    assert all(map(asked.has, "abc")), "each was sent a moment ago"
    clock[0] += 100.0
    assert asked.has("a")
    asked.place("d", mib=50)
    assert [asked.has(name) for name in "abcd"] == [True, False, True, True]


def test_what_has_no_room_and_what_cannot_be_processed_is_refused(clock: list[float]) -> None:
    asked = Asked()
    for name in "abcd":
        asked.place(name, mib=250)
    with pytest.raises(Overloaded):
        asked.place("e", mib=100)
    with pytest.raises(InvalidValue):
        asked.place("f", rgb=b"odd")
    with pytest.raises(EngineFailed, match="gone"):
        asked.place("g", rgb=b"bad")
    with pytest.raises(UnsupportedParameter, match="2 images"):
        asked.pictures.of_request("", [(0, "a"), (9, "b"), (18, "c")])
