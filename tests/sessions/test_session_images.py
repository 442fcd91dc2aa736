"""Images in sessions: their files are kept within bounds, shared, saved, and handed to the engine."""

from collections.abc import AsyncGenerator, AsyncIterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from ganglion.core.engine import PlacedImage
from ganglion.core.errors import GanglionError, InvalidValue, ModelMismatch, SessionNotFound, TooManySessions
from ganglion.core.events import TokenEvent
from ganglion.core.request import ImageBlock, TokenRequest
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.sessions.saved import PREFIX, decode
from ganglion.sessions.service import SessionService
from ganglion.sessions.settings import SessionSettings
from ganglion.sessions.values import GenerationRequest

CAT, DOG = b"a cat, as a file " * 20, b"a dog, as a file " * 10
CAT_COUNT, DOG_COUNT = 3, 1


class WatchedEcho(EchoEngine):
    """An echo that remembers the images that it was handed, and whose they were."""

    def __init__(self) -> None:
        super().__init__(EchoSettings(context=4096))
        self.images: list[tuple[ImageBlock, ...]] = []
        self.placed: list[tuple[str, bytes]] = []
        self.per_position = 100

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        self.images.append(request.images)
        async for event in super().continue_tokens(model, request):
            yield event

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        self.placed.append((tenant, data))
        return PlacedImage(max(len(data) // self.per_position, 1), sha256(data).hexdigest())


@pytest.fixture
async def engine() -> AsyncIterator[WatchedEcho]:
    engine = WatchedEcho()
    await engine.open()
    yield engine
    await engine.close()


def service(engine: EchoEngine, **settings: object) -> SessionService:
    return SessionService(engine, engine, engine.models, SessionSettings(**settings))  # type: ignore[arg-type]


async def generate(sessions: SessionService, session_id: str, offset: int, tenant: str = "a") -> None:
    request = GenerationRequest((7,), offset=offset, max_tokens=1)
    async for _ in sessions.generate(tenant, session_id, request):
        pass


async def append(
    sessions: SessionService, session_id: str, data: bytes, offset: int, tenant: str = "a"
) -> int:
    appended = await sessions.append_image(
        tenant, session_id, data, "image/png", offset=offset, is_truncating=False
    )
    return appended.total_tokens


async def with_pets(sessions: SessionService, tenant: str = "a") -> str:
    """A session with a cat, a dog, and the cat again."""
    session_id = (await sessions.open(tenant, "echo")).session_id
    length = 0
    for data in (CAT, DOG, CAT):
        length = await append(sessions, session_id, data, length, tenant)
    assert length == 2 * CAT_COUNT + DOG_COUNT
    return session_id


def files_of(engine: WatchedEcho) -> list[bytes]:
    return [image.data for image in engine.images[-1]]


async def test_the_engine_is_handed_the_files_and_told_whose_they_are(engine: WatchedEcho) -> None:
    sessions = service(engine)
    session_id = await with_pets(sessions)
    assert engine.placed == [("a", CAT), ("a", DOG), ("a", CAT)]
    await generate(sessions, session_id, 7)
    assert files_of(engine) == [CAT, DOG, CAT]
    assert [(image.start, image.count) for image in engine.images[-1]] == [(0, 3), (3, 1), (4, 3)]


async def test_a_file_is_held_once_by_all_sessions_of_a_tenant_and_goes_with_the_last(
    engine: WatchedEcho,
) -> None:
    sessions = service(engine)
    first = await with_pets(sessions)
    assert sessions.image_bytes_in_memory == len(CAT) + len(DOG)
    second = await with_pets(sessions)
    forked = (await sessions.fork("a", first)).session_id
    assert sessions.image_bytes_in_memory == len(CAT) + len(DOG)
    await generate(sessions, first, 7)
    await generate(sessions, second, 7)
    held, again = engine.images[-2:]
    assert all(one.data is other.data for one, other in zip(held, again, strict=True))
    await sessions.truncate("a", first, 3)
    await sessions.close_session("a", second)
    assert sessions.image_bytes_in_memory == len(CAT) + len(DOG), "the fork has both"
    await sessions.close_session("a", forked)
    assert sessions.image_bytes_in_memory == len(CAT)
    await sessions.close_session("a", first)
    assert sessions.image_bytes_in_memory == 0


async def test_tenants_share_no_file(engine: WatchedEcho) -> None:
    sessions = service(engine)
    await with_pets(sessions, "a")
    await with_pets(sessions, "b")
    assert sessions.image_bytes_in_memory == 2 * (len(CAT) + len(DOG))


@pytest.mark.parametrize(
    ("bounds", "who"),
    [
        ({"max_session_image_bytes": len(CAT)}, "One session"),
        ({"max_key_image_bytes": len(CAT)}, "The sessions of one key"),
        ({"max_image_mb": 0}, "All sessions"),
    ],
)
async def test_more_files_than_may_be_held_are_refused_and_change_nothing(
    engine: WatchedEcho, bounds: dict[str, int], who: str
) -> None:
    sessions = service(engine, **bounds)
    session_id = (await sessions.open("a", "echo")).session_id
    length = await append(sessions, session_id, CAT, 0) if "max_image_mb" not in bounds else 0
    with pytest.raises(TooManySessions, match=who) as refused:
        await append(sessions, session_id, DOG, length)
    assert refused.value.hint
    assert refused.value.extras["session_length"] == length
    if length:
        assert await append(sessions, session_id, CAT, length) == 2 * CAT_COUNT, "it is held already"
        await sessions.truncate("a", session_id, 0)
    assert sessions.image_bytes_in_memory == 0


async def test_what_a_call_truncates_makes_room_for_its_own_image(engine: WatchedEcho) -> None:
    sessions = service(engine, max_session_image_bytes=len(CAT))
    session_id = (await sessions.open("a", "echo")).session_id
    await append(sessions, session_id, CAT, 0)
    await sessions.append_image("a", session_id, DOG, "image/png", offset=0, is_truncating=True)
    assert sessions.image_bytes_in_memory == len(DOG)


async def test_an_image_for_a_session_that_was_closed_meanwhile_is_dropped(engine: WatchedEcho) -> None:
    sessions = service(engine)
    session_id = (await sessions.open("a", "echo")).session_id
    place = engine.place_image

    async def closing(model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        await sessions.close_session("a", session_id)
        return await place(model, data, mime, tenant=tenant)

    engine.place_image = closing  # type: ignore[method-assign]
    with pytest.raises(SessionNotFound):
        await append(sessions, session_id, CAT, 0)
    assert sessions.image_bytes_in_memory == 0


async def test_a_saved_session_has_each_file_once_and_is_restored_elsewhere_with_all(
    engine: WatchedEcho,
) -> None:
    saved = await (sessions := service(engine)).save("a", await with_pets(sessions), with_kv=True)
    assert (saved.count(CAT), saved.count(DOG)) == (1, 1)
    elsewhere = service(engine)
    restored = await elsewhere.restore("b", saved)
    assert engine.placed[-2:] == [("b", CAT), ("b", DOG)], "each is looked at by the model that takes it"
    await generate(elsewhere, restored.session_id, 7, "b")
    assert files_of(engine) == [CAT, DOG, CAT]
    assert elsewhere.image_bytes_in_memory == len(CAT) + len(DOG)


async def test_a_suspended_session_comes_back_after_a_restart_with_its_images(
    engine: WatchedEcho, tmp_path: Path
) -> None:
    sessions = service(engine, folder=tmp_path, keeps_on_drain=True)
    await sessions.start()
    suspended, kept = await with_pets(sessions), await with_pets(sessions)
    await sessions.suspend("a", suspended)
    await sessions.close_session("a", kept)
    assert sessions.image_bytes_in_memory == 0
    kept = await with_pets(sessions)
    await sessions.stop()
    assert sessions.image_bytes_in_memory == 0

    again = service(engine, folder=tmp_path)
    await again.start()
    assert [each.image_count for each in again.sessions("a")] == [3, 3]
    for session_id in (suspended, kept):
        await generate(again, session_id, 7)
        assert files_of(engine) == [CAT, DOG, CAT]
    assert again.image_bytes_in_memory == len(CAT) + len(DOG)
    await again.stop()


async def test_a_suspended_session_waits_until_there_is_room_for_its_images(
    engine: WatchedEcho, tmp_path: Path
) -> None:
    sessions = service(engine, folder=tmp_path, max_key_image_bytes=len(CAT) + len(DOG))
    first = await with_pets(sessions)
    await sessions.suspend("a", first)
    other = (await sessions.open("a", "echo")).session_id
    await append(sessions, other, CAT + DOG, 0)
    with pytest.raises(TooManySessions):
        await generate(sessions, first, 7)
    await sessions.close_session("a", other)
    await generate(sessions, first, 7)
    assert files_of(engine) == [CAT, DOG, CAT]


async def test_a_model_that_takes_the_image_otherwise_refuses_the_session(engine: WatchedEcho) -> None:
    saved = await (sessions := service(engine)).save("a", await with_pets(sessions), with_kv=False)
    engine.per_position = 50
    with pytest.raises(ModelMismatch) as refused:
        await sessions.restore("a", saved)
    assert refused.value.hint
    assert sessions.open_sessions == 1


async def test_damage_to_a_file_is_noticed_and_so_is_a_file_that_is_not_the_sessions(
    engine: WatchedEcho,
) -> None:
    saved = await (sessions := service(engine)).save("a", await with_pets(sessions), with_kv=False)
    for place in (saved.index(CAT), saved.index(DOG) + 3, len(saved) - 1):
        with pytest.raises(InvalidValue):
            await sessions.restore("a", saved[:place] + bytes([saved[place] ^ 1]) + saved[place + 1 :])
        with pytest.raises(InvalidValue):
            await sessions.restore("a", saved[:place])
    stranger = rewritten(saved, lambda files: [*files, [sha256(b"bird").hexdigest(), 4]], b"bird")
    with pytest.raises(InvalidValue, match="not those"):
        await sessions.restore("a", stranger)
    assert sessions.open_sessions == 1


async def test_a_session_of_the_first_version_is_read_and_one_without_images_still_written(
    engine: WatchedEcho,
) -> None:
    sessions = service(engine)
    session_id = (await sessions.open("a", "echo")).session_id
    await generate(sessions, session_id, 0)
    saved = await sessions.save("a", session_id, with_kv=False)
    assert saved.startswith(b"ganglion sess 1\n")
    fields = msgspec.msgpack.decode(saved[PREFIX.size :])
    first = encoded(b"ganglion sess 1\n", fields[:10])
    assert (await sessions.restore("a", first)).total_tokens == 2
    # What the first version wrote of images was where they are, and nothing to compute them from.
    pets = await sessions.save("a", await with_pets(sessions), with_kv=False)
    fields = msgspec.msgpack.decode(pets[PREFIX.size : PREFIX.size + PREFIX.unpack_from(pets)[1]])
    with pytest.raises(InvalidValue, match="without the files") as refused:
        await sessions.restore("a", encoded(b"ganglion sess 1\n", fields[:10]))
    assert refused.value.hint


async def test_no_bytes_at_all_make_the_reader_of_saved_sessions_do_anything_but_refuse(
    engine: WatchedEcho,
) -> None:
    saved = await (sessions := service(engine)).save("a", await with_pets(sessions), with_kv=False)
    for files in ([["", 0]], [["x", -1]], [["x", 2**62]], [[sha256(b"").hexdigest(), 0]]):
        with pytest.raises(GanglionError):
            decode(rewritten(saved, lambda _, files=files: files, b""))


def rewritten(saved: bytes, change: object, tail: bytes) -> bytes:
    """A saved session with other files in its header, and more bytes at its end."""
    end = PREFIX.size + PREFIX.unpack_from(saved)[1]
    fields = msgspec.msgpack.decode(saved[PREFIX.size : end])
    fields[10] = change(fields[10])  # type: ignore[operator]
    return encoded(b"ganglion sess 2\n", fields) + saved[end:] + tail


def encoded(form: bytes, fields: list[object]) -> bytes:
    header = msgspec.msgpack.encode(fields)
    return PREFIX.pack(form, len(header), sha256(header).digest()) + header
