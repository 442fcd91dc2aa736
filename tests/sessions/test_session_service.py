"""Sessions over an engine without a model: rules, limits, lives, and what a call leaves behind."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec import structs

from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    GanglionError,
    ImageBlockCut,
    InvalidValue,
    ModelMismatch,
    ModelNotFound,
    SessionBusy,
    SessionDrift,
    SessionNotFound,
    TooManySessions,
)
from ganglion.core.events import Progress
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.sessions.service import SessionService
from ganglion.sessions.settings import SessionSettings
from ganglion.sessions.values import GenerationDone, GenerationRequest, SessionEvent, SessionToken
from support.waiting import until

PNG = b"\x89PNG" + bytes(396)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def engine() -> AsyncIterator[EchoEngine]:
    engine = EchoEngine(EchoSettings(context=64))
    await engine.open()
    yield engine
    await engine.close()


def keeper_of(
    engine: EchoEngine, settings: SessionSettings | None = None, clock: Clock | None = None
) -> SessionService:
    return SessionService(engine, engine, engine.models, settings, clock=clock or Clock())


async def all_of(
    keeper: SessionService, session: str, asked: GenerationRequest, tenant: str = "a"
) -> list[SessionEvent]:
    return [event async for event in keeper.generate(tenant, session, asked)]


async def words(engine: EchoEngine, text: str) -> tuple[int, ...]:
    return await engine.tokenize(text, add_special=False, parse_special=False)


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def test_what_is_generated_is_told_and_kept(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    opened = await keeper.open("a", "echo")
    tokens = await words(engine, "one two three")
    events = await all_of(keeper, opened.session_id, GenerationRequest(tokens, max_tokens=8))
    told = [event for event in events if isinstance(event, SessionToken)]
    assert [event.token.id for event in told] == list(tokens)
    assert [event.token.position for event in told] == [3, 4, 5]
    assert not any(event.is_prefill for event in told)
    assert events[-1] == GenerationDone(3, 3, 0, 6, "stop")
    assert [info.total_tokens for info in keeper.sessions("a")] == [6]
    assert keeper.tokens_in_memory == 6


async def test_a_call_with_another_offset_is_refused_and_changes_nothing(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1, 2, 3)))
    for offset in (0, 2, 4):
        with pytest.raises(SessionDrift) as drift:
            await all_of(keeper, session, GenerationRequest((9,), offset=offset))
        assert drift.value.extras["session_length"] == 3
    await all_of(keeper, session, GenerationRequest((9,), offset=1, is_truncating=True))
    assert keeper.sessions("a")[0].total_tokens == 2


async def test_ranges_cover_what_was_committed_and_what_is_generated_exactly(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    tokens = await words(engine, "one two three four")
    await all_of(keeper, session, GenerationRequest(tokens))
    asked = GenerationRequest(offset=4, max_tokens=4, logprobs=((1, 3), (5, 6)), top=2)
    told = [event for event in await all_of(keeper, session, asked) if isinstance(event, SessionToken)]
    assert [(each.token.position, each.is_prefill, each.token.logprob is not None) for each in told] == [
        (1, True, True),
        (2, True, True),
        (4, False, False),
        (5, False, True),
        (6, False, False),
        (7, False, False),
    ]
    assert all(len(each.token.top) == 2 for each in told if each.token.logprob is not None)


async def test_a_cancelled_call_keeps_what_it_told(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    tokens = await words(engine, "one two three")
    async with aclosing(keeper.generate("a", session, GenerationRequest(tokens, max_tokens=9))) as events:
        async for event in events:
            if isinstance(event, SessionToken) and event.token.position == 4:
                break
    assert keeper.sessions("a")[0].total_tokens == 5
    assert not keeper.sessions("a")[0].is_busy


async def test_one_call_at_a_time_changes_a_session_and_forks_are_free() -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(delay_s=0.05))
    await engine.open()
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    tokens = await words(engine, "one two three")
    running = keeper.generate("a", session, GenerationRequest(tokens, max_tokens=9))
    await anext(running)
    for refused in (
        all_of(keeper, session, GenerationRequest(offset=4, max_tokens=1)),
        keeper.truncate("a", session, 0),
        keeper.append_image("a", session, PNG, "image/png", offset=4, is_truncating=False),
        keeper.save("a", session, with_kv=False),
    ):
        with pytest.raises(SessionBusy) as busy:
            await refused
        assert busy.value.extras["session_length"] == 4
    assert (await keeper.fork("a", session)).total_tokens == 4
    await running.aclose()
    assert await keeper.truncate("a", session, 1) == 1
    await engine.close()


async def test_a_session_that_is_closed_ends_what_runs_in_it() -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(delay_s=0.01, is_unbounded=True))
    await engine.open()
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    running = keeper.generate("a", session, GenerationRequest((1, 2), max_tokens=1000))
    await anext(running)
    await keeper.close_session("a", session)
    with pytest.raises(SessionNotFound):
        async for _ in running:
            pass
    assert (keeper.open_sessions, keeper.tokens_in_memory) == (0, 0)
    await engine.close()


async def test_another_tenants_session_is_as_unknown_as_none(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1,)))
    for tenant, name in (("b", session), ("a", "sess_none"), ("", session)):
        for refused in (
            all_of(keeper, name, GenerationRequest((2,), offset=1), tenant),
            keeper.fork(tenant, name),
            keeper.truncate(tenant, name, 0),
            keeper.close_session(tenant, name),
            keeper.save(tenant, name, with_kv=True),
            keeper.suspend(tenant, name),
            keeper.append_image(tenant, name, PNG, "image/png", offset=1, is_truncating=False),
        ):
            with pytest.raises(SessionNotFound) as found:
                await refused
            assert "session_length" not in found.value.extras
    assert keeper.sessions("b") == ()


async def test_a_session_is_forgotten_when_nobody_names_it_in_its_time(engine: EchoEngine) -> None:
    clock = Clock()
    keeper = keeper_of(engine, clock=clock)
    short = (await keeper.open("a", "echo", ttl_s=5.0)).session_id
    long = (await keeper.open("a", "echo", ttl_s=50.0)).session_id
    await all_of(keeper, short, GenerationRequest((1, 2)))
    clock.now_s += 4
    await all_of(keeper, short, GenerationRequest((3,), offset=2))
    clock.now_s += 4
    assert {info.session_id for info in keeper.sessions("a")} == {short, long}
    clock.now_s += 2
    assert {info.session_id for info in keeper.sessions("a")} == {long}
    with pytest.raises(SessionNotFound):
        await all_of(keeper, short, GenerationRequest((4,), offset=3))


async def test_the_sweep_gives_memory_back(engine: EchoEngine) -> None:
    keeper = SessionService(engine, engine, engine.models)
    await keeper.start()
    session = (await keeper.open("a", "echo", ttl_s=0.1)).session_id
    await all_of(keeper, session, GenerationRequest((1, 2)))
    await until(lambda: not keeper.open_sessions, 5)
    assert keeper.tokens_in_memory == 0
    await keeper.stop()


async def test_limits_are_by_key_and_by_tokens(engine: EchoEngine) -> None:
    clock = Clock()
    keeper = keeper_of(engine, SessionSettings(max_per_key=2, max_tokens=10), clock)
    first = (await keeper.open("a", "echo", ttl_s=5)).session_id
    await keeper.open("a", "echo")
    for refused in (keeper.open("a", "echo"), keeper.fork("a", first)):
        with pytest.raises(TooManySessions):
            await refused
    await keeper.open("b", "echo")
    await all_of(keeper, first, GenerationRequest((1,) * 8))
    with pytest.raises(TooManySessions):
        await all_of(keeper, first, GenerationRequest((1,) * 3, offset=8))
    await all_of(keeper, first, GenerationRequest((1,) * 10, offset=0, is_truncating=True))
    clock.now_s += 6
    await keeper.open("a", "echo")


async def test_overflow_says_so_and_changes_nothing(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    with pytest.raises(ContextLengthExceeded):
        await all_of(keeper, session, GenerationRequest((1,) * 65))
    await all_of(keeper, session, GenerationRequest((1,) * 64))
    with pytest.raises(ContextLengthExceeded) as error:
        await all_of(keeper, session, GenerationRequest(offset=64, max_tokens=1))
    assert error.value.extras["session_length"] == 64
    assert "messages" not in error.value.message and "truncate the session" in error.value.message


async def test_a_position_beyond_the_end_is_refused_by_the_name_of_its_field(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1, 2, 3)))
    await keeper.append_image("a", session, PNG, "image/png", offset=3, is_truncating=False)
    for refused, kind, param in (
        (keeper.fork("a", session, at=8), SessionDrift, "at"),
        (keeper.truncate("a", session, 8), SessionDrift, "length"),
        (keeper.fork("a", session, at=4), ImageBlockCut, "at"),
        (keeper.truncate("a", session, 4), ImageBlockCut, "length"),
    ):
        with pytest.raises(kind) as error:
            await refused
        assert error.value.param == param
    await keeper.truncate("a", session, 3)
    for ranges, is_right in ((((0, 5),), True), (((5, None),), True), (((3, None), (0, 6)), False)):
        for asked in (
            GenerationRequest(offset=3, max_tokens=2, logprobs=ranges),
            GenerationRequest(offset=3, append=(4, 5), logprobs=ranges),
        ):
            if is_right:
                await all_of(keeper, session, asked)
                await keeper.truncate("a", session, 3)
                continue
            with pytest.raises(InvalidValue, match=r"\[0, 6\)") as beyond:
                await all_of(keeper, session, asked)
            assert beyond.value.param == "logprobs_ranges[1]"
            assert keeper.sessions("a")[0].total_tokens == 3
    with pytest.raises(InvalidValue) as beyond:
        await all_of(keeper, session, GenerationRequest(offset=3, readout=((4, None),)))
    assert beyond.value.param == "readout_ranges[0]"


async def test_a_failure_before_the_engine_began_changes_nothing_and_one_after_keeps_what_was_told() -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(fail_at=2, error=EngineFailed("It died.")))
    keeper = keeper_of(engine)
    await engine.open()
    session = (await keeper.open("a", "echo")).session_id
    await engine.close()
    with pytest.raises(GanglionError):
        await all_of(keeper, session, GenerationRequest((1, 2), max_tokens=4))
    assert keeper.sessions("a")[0].total_tokens == 0
    await engine.open()
    with pytest.raises(EngineFailed) as failed:
        await all_of(keeper, session, GenerationRequest(await words(engine, "one two three"), max_tokens=4))
    assert failed.value.extras["session_length"] == 5
    assert keeper.sessions("a")[0].total_tokens == 5


async def test_images_are_held_whole(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1, 2)))
    placed = await keeper.append_image("a", session, PNG, "image/png", offset=2, is_truncating=False)
    assert (placed.count, placed.total_tokens) == (4, 6)
    await all_of(keeper, session, GenerationRequest((3,), offset=6))
    for at in (3, 4, 5):
        for refused in (
            keeper.truncate("a", session, at),
            keeper.fork("a", session, at=at),
            all_of(keeper, session, GenerationRequest((1,), offset=at, is_truncating=True)),
        ):
            with pytest.raises(ImageBlockCut):
                await refused
    forked = await keeper.fork("a", session, at=6)
    assert [info.image_count for info in keeper.sessions("a")] == [1, 1]
    assert await keeper.truncate("a", forked.session_id, 2) == 2
    assert [info.image_count for info in keeper.sessions("a")] == [1, 0]


@pytest.mark.parametrize(
    ("data", "mime", "param"),
    [(PNG, "text/html", "mime"), (b"", "image/png", "data"), (bytes(200), "image/png", "data")],
)
async def test_an_image_that_is_none_is_refused(
    engine: EchoEngine, data: bytes, mime: str, param: str
) -> None:
    keeper = keeper_of(engine, SessionSettings(max_image_bytes=100))
    session = (await keeper.open("a", "echo")).session_id
    with pytest.raises(InvalidValue) as error:
        await keeper.append_image("a", session, data, mime, offset=0, is_truncating=False)
    assert error.value.param == param


async def test_an_image_that_does_not_fit_is_refused(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    with pytest.raises(ContextLengthExceeded):
        await keeper.append_image("a", session, bytes(6500), "image/png", offset=0, is_truncating=False)
    assert keeper.sessions("a")[0].total_tokens == 0


async def test_a_session_moves_to_another_server_with_the_same_model(engine: EchoEngine) -> None:
    keeper, elsewhere = keeper_of(engine), keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1, 2)))
    await keeper.append_image("a", session, PNG, "image/png", offset=2, is_truncating=False)
    saved = await keeper.save("a", session, with_kv=True)
    assert b"sess_" not in saved
    restored = await elsewhere.restore("b", saved)
    assert (restored.model, restored.total_tokens) == ("echo", 6)
    assert elsewhere.sessions("b")[0].image_count == 1
    await all_of(elsewhere, restored.session_id, GenerationRequest((3,), offset=6), "b")
    other = EchoEngine(EchoSettings(model_id="other"))
    with pytest.raises(ModelMismatch):
        await keeper_of(other).restore("a", saved)


async def test_every_damage_to_a_saved_session_is_noticed(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1, 2)))
    saved = await keeper.save("a", session, with_kv=False)
    for place in range(len(saved)):
        with pytest.raises(InvalidValue):
            await keeper.restore("a", saved[:place] + bytes([saved[place] ^ 1]) + saved[place + 1 :])
        with pytest.raises(InvalidValue):
            await keeper.restore("a", saved[:place])
    with pytest.raises(InvalidValue):
        await keeper.restore("a", saved + b"\0")
    assert keeper.open_sessions == 1


async def test_a_suspended_session_outlives_the_server(engine: EchoEngine, tmp_path: Path) -> None:
    clock = Clock()
    settings = SessionSettings(folder=tmp_path / "sessions")
    keeper = keeper_of(engine, settings, clock)
    await keeper.start()
    session = (await keeper.open("a", "echo", ttl_s=30)).session_id
    open_one = (await keeper.open("a", "echo")).session_id
    await all_of(keeper, session, GenerationRequest((1, 2, 3)))
    suspended = await keeper.suspend("a", session)
    assert suspended.total_tokens == 3
    assert keeper.tokens_in_memory == 0
    file = next((tmp_path / "sessions").iterdir())
    assert (file.stat().st_size, file.stat().st_mode & 0o777) == (suspended.size_bytes, 0o600)
    clock.now_s += 1000
    await keeper.stop()

    again = keeper_of(engine, settings, clock)
    await again.start()
    assert [(info.session_id, info.is_suspended) for info in again.sessions("a")] == [(session, True)]
    with pytest.raises(SessionNotFound):
        await all_of(again, session, GenerationRequest((4,), offset=3), "b")
    with pytest.raises(SessionNotFound):
        await all_of(again, open_one, GenerationRequest((4,)))
    events = await all_of(again, session, GenerationRequest((4,), offset=3))
    assert isinstance(events[-1], GenerationDone)
    assert events[-1].total_tokens == 4
    assert not again.sessions("a")[0].is_suspended
    assert list((tmp_path / "sessions").iterdir()) == []
    await again.stop()


async def test_a_drain_keeps_open_sessions_when_it_is_asked_to(engine: EchoEngine, tmp_path: Path) -> None:
    settings = SessionSettings(folder=tmp_path, keeps_on_drain=True)
    keeper = keeper_of(engine, settings)
    await keeper.start()
    sessions = [(await keeper.open("a", "echo")).session_id for _ in range(3)]
    for number, session in enumerate(sessions):
        await all_of(keeper, session, GenerationRequest((7,) * (number + 1)))
    await keeper.stop()
    again = keeper_of(engine, structs.replace(settings, keeps_on_drain=False))
    await again.start()
    assert {info.session_id: info.total_tokens for info in again.sessions("a")} == {
        session: number + 1 for number, session in enumerate(sessions)
    }
    await again.close_session("a", sessions[0])
    await again.stop()
    assert files_in(tmp_path) == 2


async def test_a_drain_keeps_what_fits_and_leaves_whatever_the_disk_says(
    engine: EchoEngine, tmp_path: Path
) -> None:
    keeper = keeper_of(engine, SessionSettings(folder=tmp_path, keeps_on_drain=True, folder_bytes=2000))
    await keeper.start()
    for count in (1, 60, 1, 60, 60, 60, 60, 60):
        session = (await keeper.open("a", "echo")).session_id
        await all_of(keeper, session, GenerationRequest((7,) * count))
    await keeper.stop()
    assert 0 < files_in(tmp_path) < 8
    assert keeper.open_sessions == 0


async def test_a_file_that_is_no_session_is_left_alone(engine: EchoEngine, tmp_path: Path) -> None:
    (tmp_path / "sess_broken.session").write_bytes(b"nothing of the kind")
    (tmp_path / "notes.txt").write_text("mine")
    keeper = keeper_of(engine, SessionSettings(folder=tmp_path))
    await keeper.start()
    assert keeper.sessions("") == ()
    await keeper.stop()
    assert files_in(tmp_path) == 2


async def test_an_unknown_model_and_a_concept_without_a_pack_are_refused(engine: EchoEngine) -> None:
    from ganglion.core.request import Steer

    keeper = keeper_of(engine)
    with pytest.raises(ModelNotFound):
        await keeper.open("a", "nothing")
    with pytest.raises(InvalidValue) as error:
        await keeper.open("a", "echo", steering=(Steer("joy", 1.0),))
    assert error.value.param == "steering"
    assert keeper.open_sessions == 0


async def test_an_empty_session_has_nothing_to_go_on_from(engine: EchoEngine) -> None:
    keeper = keeper_of(engine)
    session = (await keeper.open("a", "echo")).session_id
    with pytest.raises(InvalidValue):
        await all_of(keeper, session, GenerationRequest(max_tokens=1))


async def test_progress_is_told_while_a_prompt_is_read(engine: EchoEngine) -> None:
    class Slow(EchoEngine):
        async def continue_tokens(self, model, request):  # type: ignore[no-untyped-def]
            async for event in super().continue_tokens(model, request):
                yield event
                if type(event).__name__ == "Started":
                    yield Progress("prefilled", 1, 2)

    slow = Slow(EchoSettings())
    await slow.open()
    keeper = keeper_of(slow)
    session = (await keeper.open("a", "echo")).session_id
    assert Progress("prefilled", 1, 2) in await all_of(
        keeper, session, GenerationRequest((1, 2), max_tokens=1)
    )
    await slow.close()
