"""Models that come and go, as one engine."""

import asyncio
import traceback
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import pytest

from ganglion.core.engine import LoadOptions, LoadProgress, ManagedEngine, ModelState
from ganglion.core.errors import (
    EngineFailed,
    GanglionError,
    HubUnreachable,
    InsufficientMemory,
    InvalidValue,
    LoadFailed,
    ModelLoading,
    ModelNotFound,
    Overloaded,
    ShuttingDown,
)
from ganglion.core.events import Event, Failed, Finished, Progress
from ganglion.core.fold import fold
from ganglion.core.request import Request, TextPrompt
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.hub.download import Report
from ganglion.registry.loading import eviction, residency
from ganglion.registry.loading.activation import ActivationQueue
from ganglion.registry.loading.candidate import Candidate
from ganglion.registry.loading.residency import Residency
from ganglion.registry.settings import ResidencySettings
from support.waiting import until

MIB = 2**20


@dataclass
class Shop:
    """Makes candidates over echo engines and counts what becomes of them."""

    free_mb: int = 1 << 20
    builds: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    loaded_mb: dict[str, int] = field(default_factory=dict)

    def candidate(
        self,
        name: str,
        *aliases: str,
        memory_mb: int = 100,
        delay_s: float = 0.0,
        error: GanglionError | None = None,
        answer_s: float = 0.0,
        **known: object,
    ) -> Candidate:
        async def build(options: LoadOptions, *, free_bytes: int) -> ManagedEngine:
            self.builds.append(name)
            if memory_mb * MIB > free_bytes:
                raise InsufficientMemory("too little", free_mb=free_bytes // MIB, required_mb=memory_mb)
            settings = EchoSettings(name, open_delay_s=delay_s, open_error=error, queue_limit=1000)
            script = EchoScript(reply=name, first_token_delay_s=answer_s)
            return Sized(self, name, memory_mb, EchoEngine(settings, script))

        return Candidate(name, build, aliases=aliases, **known)  # type: ignore[arg-type]

    def residency(
        self, *candidates: Candidate, find: residency.NameLookup | None = None, **settings: object
    ) -> Residency:
        extra = {} if find is None else {"find": find}
        return Residency(
            candidates,
            free_bytes=lambda: (self.free_mb - sum(self.loaded_mb.values())) * MIB,
            settings=ResidencySettings(**settings),  # type: ignore[arg-type]
            **extra,
        )


class Sized:
    """An echo that takes memory while it is open."""

    def __init__(self, shop: Shop, name: str, memory_mb: int, inner: EchoEngine) -> None:
        self.shop, self.name, self.memory_mb, self.inner = shop, name, memory_mb, inner
        self.gave_up: str | None = None

    async def open(self) -> None:
        await self.inner.open()
        self.shop.loaded_mb[self.name] = self.memory_mb

    async def close(self) -> None:
        await self.inner.close()
        self.shop.loaded_mb.pop(self.name, None)
        self.shop.closed.append(self.name)

    def models(self) -> tuple[ModelState, ...]:
        status = "failed" if self.gave_up else None
        return tuple(
            replace(
                state,
                memory_mb=self.memory_mb,
                resident_mb=self.memory_mb,
                status=status or state.status,
                error=self.gave_up,
            )
            for state in self.inner.models()
        )

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        return self.inner.generate(request)


async def collect(engine: Residency, model: str) -> list[Event]:
    return [event async for event in engine.generate(Request("1", model, TextPrompt("hi")))]


async def said(engine: Residency, model: str) -> str:
    return fold(await collect(engine, model)).text("text")


async def error_of(engine: Residency, model: str) -> GanglionError:
    last = (await collect(engine, model))[-1]
    assert isinstance(last, Failed)
    return last.error


async def loads(engine: Residency, model: str, options: LoadOptions | None = None) -> list[LoadProgress]:
    return [step async for step in engine.load(model, options or LoadOptions())]


def statuses(engine: Residency) -> dict[str, str]:
    return {state.id: state.status for state in engine.models()}


async def test_it_dispatches_by_id_then_alias_then_catch_all() -> None:
    shop = Shop()
    subject = shop.residency(
        shop.candidate("a", "small", "b"), shop.candidate("b", "*"), shop.candidate("c", "Large")
    )
    await subject.open()
    names = {"a": "a", "b": "b", "c": "c", "SMALL": "a", "large": "c", "gpt-4": "b", "C": "b"}
    assert {name: await said(subject, name) for name in names} == names
    assert [state.id for state in subject.models()] == ["a", "b", "c"]
    await subject.close()


async def test_an_unknown_model_is_told_what_is_here() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("qwen3-4b"), shop.candidate("other"), auto_load=False)
    await subject.open()
    error = await error_of(subject, "qwen3")
    assert isinstance(error, ModelNotFound)
    assert error.hint == "Did you mean qwen3-4b? Here: qwen3-4b, other."
    await subject.close()


async def test_a_model_that_nobody_loads_for_a_request_is_not_called_unknown() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("echo-a"), shop.candidate("echo-b"), auto_load=False)
    await subject.open()
    await subject.unload("echo-a", is_forced=False)
    error = await error_of(subject, "echo-a")
    assert (error.status, error.code, error.message) == (
        404,
        "model_not_found",
        "The model 'echo-a' is not loaded.",
    )
    assert error.hint is not None and "Did you mean" not in error.hint
    assert await said(subject, "echo-b") == "echo-b"
    await subject.close()


async def test_an_error_that_is_told_often_does_not_grow() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("bad", error=LoadFailed("a bad file")))
    for _ in range(50):
        error = await error_of(subject, "bad")
    frames, trace = 0, error.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    assert frames < 10
    await subject.close()


async def test_one_that_cannot_open_stays_listed_while_the_others_serve() -> None:
    shop, broken = Shop(), LoadFailed("a bad file")
    subject = shop.residency(shop.candidate("bad", error=broken), shop.candidate("good"))
    await subject.open()
    assert statuses(subject) == {"bad": "failed", "good": "loaded"}
    assert subject.activation().failed == (("bad", "a bad file"),)
    assert subject.activation().completed == ("good",)
    assert await error_of(subject, "bad") is broken
    assert await said(subject, "good") == "good"
    await subject.close()


async def test_when_none_can_open_the_first_reason_is_raised() -> None:
    shop = Shop()
    subject = shop.residency(
        shop.candidate("x", error=LoadFailed("first")), shop.candidate("y", error=LoadFailed("second"))
    )
    with pytest.raises(LoadFailed, match="first"):
        await subject.open()
    await subject.close()


async def test_configured_models_load_one_after_another_and_requests_wait_for_theirs() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("first", delay_s=0.03), shop.candidate("second", delay_s=0.03))
    opening = asyncio.create_task(subject.open())
    await until(lambda: statuses(subject) == {"first": "loading", "second": "unloaded"})
    activation = subject.activation()
    assert (activation.in_progress, activation.pending) == ("first", ("second",))
    events = await collect(subject, "second")
    assert events[0] == Progress("queued", 0, 1)
    assert fold(events).text("text") == "second"
    await opening
    assert shop.builds == ["first", "second"]
    assert subject.activation().is_over
    await subject.close()


async def test_only_an_unreachable_hub_is_asked_again() -> None:
    attempts: list[str] = []

    async def fetch(options: LoadOptions, report: Report) -> None:
        attempts.append("hub")
        if len(attempts) < 3:
            raise HubUnreachable("no route")

    shop = Shop()
    far = replace(shop.candidate("far"), fetch=fetch)
    subject = shop.residency(far, shop.candidate("bad", error=LoadFailed("bad")), shop.candidate("near"))
    subject._activating = ActivationQueue(retry_s=(0.01,))
    subject._activating.configure(["far", "bad", "near"])
    await subject.open()
    assert subject.activation().completed == ("near", "far")
    assert shop.builds == ["bad", "near", "far"]
    assert len(attempts) == 3
    await subject.close()


async def test_a_thousand_first_requests_are_one_load() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("one", delay_s=0.05))
    answers = await asyncio.gather(*(said(subject, "one") for _ in range(1000)))
    assert set(answers) == {"one"}
    assert shop.builds == ["one"]
    await subject.close()


async def test_a_load_that_fails_fails_everyone_who_waits_once_and_is_not_tried_again_at_once() -> None:
    shop, broken = Shop(), LoadFailed("a bad file")
    subject = shop.residency(shop.candidate("bad", delay_s=0.02, error=broken))
    errors = await asyncio.gather(*(error_of(subject, "bad") for _ in range(1000)))
    assert set(errors) == {broken}
    assert await error_of(subject, "bad") is broken
    assert shop.builds == ["bad"]
    resident = subject._table.by_id["bad"]
    resident.failure = replace(resident.failure, until_s=0.0)
    assert await error_of(subject, "bad") is broken
    assert shop.builds == ["bad", "bad"]
    await subject.close()


async def test_more_waiters_than_are_let_in_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "WAITING_LIMIT", 2)
    shop = Shop()
    subject = shop.residency(shop.candidate("slow", delay_s=0.05))
    outcomes = await asyncio.gather(*(collect(subject, "slow") for _ in range(5)))
    ends = [events[-1] for events in outcomes]
    assert sum(isinstance(end, Finished) for end in ends) == 2
    assert sum(isinstance(end, Failed) and isinstance(end.error, ModelLoading) for end in ends) == 3
    await subject.close()


async def test_who_leaves_does_not_take_the_load_along() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("one", delay_s=0.05))
    leaving = asyncio.create_task(said(subject, "one"))
    staying = asyncio.create_task(said(subject, "one"))
    await asyncio.sleep(0.01)
    leaving.cancel()
    assert await staying == "one"
    assert shop.builds == ["one"]
    await subject.close()


async def test_the_third_model_takes_the_place_of_the_one_left_alone_for_longest() -> None:
    shop = Shop()
    subject = shop.residency(*(shop.candidate(name) for name in "abc"), max_models=2)
    for name in "aba":
        await said(subject, name)
    assert await said(subject, "c") == "c"
    assert statuses(subject) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
    await subject.close()


async def test_memory_decides_as_well_as_numbers() -> None:
    shop = Shop(free_mb=250)
    subject = shop.residency(
        *(shop.candidate(name, memory_mb=100) for name in "ab"), shop.candidate("big", memory_mb=200)
    )
    await said(subject, "a")
    await said(subject, "b")
    assert await said(subject, "big") == "big"
    assert statuses(subject) == {"a": "unloaded", "b": "unloaded", "big": "loaded"}
    await subject.close()


async def test_what_was_promised_and_not_touched_yet_is_not_free() -> None:
    shop = Shop(free_mb=1000)
    subject = shop.residency(*(shop.candidate(name, memory_mb=100) for name in "abc"), memory_mb=250)
    for name in "abc":
        await said(subject, name)
    assert statuses(subject) == {"a": "unloaded", "b": "loaded", "c": "loaded"}
    await subject.close()


async def test_too_little_memory_is_said_with_numbers_when_nobody_can_go() -> None:
    shop = Shop(free_mb=150)
    subject = shop.residency(
        shop.candidate("kept", is_pinned=True), shop.candidate("late", memory_mb=120), shop.candidate("small")
    )
    await said(subject, "kept")
    error = await error_of(subject, "late")
    assert isinstance(error, InsufficientMemory)
    assert error.extras == {"free_mb": 50, "required_mb": 120}
    assert statuses(subject)["kept"] == "loaded"
    await subject.close()


async def test_nobody_is_evicted_for_a_model_that_would_not_fit_anyway() -> None:
    shop = Shop(free_mb=250)
    subject = shop.residency(*(shop.candidate(name) for name in "ab"), shop.candidate("huge", memory_mb=300))
    await said(subject, "a")
    await said(subject, "b")
    error = await error_of(subject, "huge")
    assert isinstance(error, InsufficientMemory)
    assert statuses(subject) == {"a": "loaded", "b": "loaded", "huge": "failed"}
    await subject.close()


async def test_another_context_than_the_loaded_one_is_refused_and_not_ignored() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("one"))
    await loads(subject, "one")
    loaded = subject.models()[0].context_length
    assert await loads(subject, "one", LoadOptions(context_length=loaded))
    with pytest.raises(InvalidValue, match="context of 8192"):
        await loads(subject, "one", LoadOptions(context_length=loaded // 2))
    await subject.close()


async def test_pinned_models_are_never_evicted_and_more_urgent_ones_not_by_less_urgent_ones() -> None:
    shop = Shop()
    pinned, urgent = shop.candidate("pinned", is_pinned=True), shop.candidate("urgent", priority=-1)
    subject = shop.residency(pinned, urgent, shop.candidate("usual"), max_models=2)
    await said(subject, "pinned")
    await said(subject, "urgent")
    error = await error_of(subject, "usual")
    assert isinstance(error, Overloaded)
    assert statuses(subject) == {"pinned": "loaded", "urgent": "loaded", "usual": "failed"}
    await subject.close()


async def test_a_busy_model_finishes_before_it_makes_room_and_newcomers_line_up_behind() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("busy", answer_s=0.1), shop.candidate("next"), max_models=1)
    await loads(subject, "busy")
    order: list[str] = []

    async def ask(name: str) -> None:
        assert await said(subject, name) == name
        order.append(name)

    first = asyncio.create_task(ask("busy"))
    await until(lambda: not subject._table.by_id["busy"].is_idle)
    second = asyncio.create_task(ask("next"))
    await until(lambda: statuses(subject)["busy"] == "draining")
    third = asyncio.create_task(ask("busy"))
    await asyncio.gather(first, second, third)
    assert order == ["busy", "next", "busy"]
    assert shop.builds == ["busy", "next", "busy"]
    await subject.close()


async def test_ten_models_on_two_places_all_answer_and_no_busy_one_is_cut() -> None:
    shop = Shop()
    names = [f"m{number}" for number in range(10)]
    subject = shop.residency(*(shop.candidate(name, answer_s=0.002) for name in names), max_models=2)
    asked = [name for _ in range(10) for name in names]
    assert await asyncio.gather(*(said(subject, name) for name in asked)) == asked
    assert shop.builds[:10] == names, "first come, first loaded"
    assert len(shop.loaded_mb) <= 2
    await subject.close()
    assert sorted(shop.builds) == sorted(shop.closed)


async def test_a_model_that_nobody_asks_for_goes_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "WATCH_S", 0.01)
    shop = Shop()
    brief, forever = shop.candidate("brief", keep_alive_s=0.05), shop.candidate("forever")
    pinned = shop.candidate("pinned", keep_alive_s=0.01, is_pinned=True)
    subject = shop.residency(brief, forever, pinned)
    await subject.open()
    await until(lambda: statuses(subject)["brief"] == "unloaded")
    assert statuses(subject) == {"brief": "unloaded", "forever": "loaded", "pinned": "loaded"}
    assert await said(subject, "brief") == "brief"
    await subject.close()


async def test_a_load_is_told_step_by_step_with_bytes_while_it_downloads() -> None:
    async def fetch(options: LoadOptions, report: Report) -> None:
        for done in (0, 50, 100):
            await asyncio.to_thread(report, done, 100)
            await asyncio.sleep(0.01)

    shop = Shop()
    subject = shop.residency(replace(shop.candidate("far", delay_s=0.01), fetch=fetch))
    steps = await loads(subject, "far")
    assert LoadProgress("far", "downloading", 50, 100) in steps
    assert [step.status for step in steps if step.status != "downloading"][-2:] == ["loading", "loaded"]
    await subject.close()


async def test_loads_of_one_model_join_and_may_pin_it() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("one", delay_s=0.03))
    await asyncio.gather(loads(subject, "one"), loads(subject, "one", LoadOptions(is_pinned=True)))
    assert shop.builds == ["one"]
    assert subject.models()[0].is_pinned
    await subject.close()


async def test_unloading_waits_for_the_answers_and_forcing_it_ends_them() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("one", answer_s=0.1))
    await loads(subject, "one")
    answer = asyncio.create_task(said(subject, "one"))
    await until(lambda: not subject._table.by_id["one"].is_idle)
    await subject.unload("one", is_forced=False)
    assert await answer == "one"
    assert statuses(subject) == {"one": "unloaded"}
    await loads(subject, "one")
    cut = asyncio.create_task(error_of(subject, "one"))
    await until(lambda: not subject._table.by_id["one"].is_idle)
    await asyncio.sleep(0.02)
    await subject.unload("one", is_forced=True)
    assert isinstance(await cut, ShuttingDown | EngineFailed)
    with pytest.raises(ModelNotFound):
        await subject.unload("other", is_forced=False)
    await subject.close()


async def test_what_was_found_by_another_name_is_unloaded_by_that_name_too() -> None:
    shop = Shop()

    async def find(name: str, *, may_catch_all: bool) -> Candidate | str:
        return shop.candidate("disk") if name in ("disk", "d") else shop.candidate(name)

    subject = shop.residency(find=find)
    assert await said(subject, "d") == "disk"
    await subject.unload("d", is_forced=False)
    assert statuses(subject) == {"disk": "unloaded"}
    with pytest.raises(ModelNotFound):
        await subject.unload("never-loaded", is_forced=False)
    await subject.close()


async def test_unloading_what_is_loading_ends_the_load_and_its_waiters() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("slow", delay_s=30))
    waiting = asyncio.create_task(error_of(subject, "slow"))
    await until(lambda: statuses(subject)["slow"] == "loading")
    await subject.unload("slow", is_forced=False)
    assert isinstance(await waiting, ShuttingDown)
    assert statuses(subject) == {"slow": "unloaded"}
    await subject.close()


async def test_closing_while_one_loads_ends_the_wait_for_it() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("slow", delay_s=30))
    opening = asyncio.create_task(subject.open())
    waiting = asyncio.create_task(error_of(subject, "slow"))
    await until(lambda: statuses(subject)["slow"] == "loading")
    opening.cancel()
    await subject.close()
    assert isinstance(await waiting, ShuttingDown)


async def test_giving_up_a_load_that_waits_for_room_leaves_the_others_whole() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("busy", answer_s=0.1), shop.candidate("next"), max_models=1)
    await loads(subject, "busy")
    answer = asyncio.create_task(said(subject, "busy"))
    await until(lambda: not subject._table.by_id["busy"].is_idle)
    waiting = asyncio.create_task(error_of(subject, "next"))
    await until(lambda: statuses(subject)["busy"] == "draining")
    await subject.unload("next", is_forced=False)
    assert isinstance(await waiting, ShuttingDown)
    assert await answer == "busy"
    assert await said(subject, "busy") == "busy"
    await subject.close()


async def test_an_engine_that_gave_up_counts_as_failed_and_can_be_loaded_again() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("one"))
    await loads(subject, "one")
    engine = subject._table.by_id["one"].engine
    assert isinstance(engine, Sized)
    engine.gave_up = "it died three times"
    error = await error_of(subject, "one")
    assert isinstance(error, EngineFailed)
    assert "it died three times" in error.message
    assert statuses(subject) == {"one": "failed"}
    await loads(subject, "one")
    assert await said(subject, "one") == "one"
    await subject.close()


async def test_what_is_not_held_is_found_loaded_and_held_unless_loading_is_off() -> None:
    shop = Shop()

    async def find(name: str, *, may_catch_all: bool) -> Candidate | str:
        if name.startswith("disk"):
            return shop.candidate("disk", "other-name")
        raise ModelNotFound(name)

    subject = shop.residency(find=find)
    assert await said(subject, "disk-q4") == "disk"
    assert await said(subject, "OTHER-NAME") == "disk"
    assert shop.builds == ["disk"]
    assert isinstance(await error_of(subject, "nowhere"), ModelNotFound)
    await subject.close()
    closed = shop.residency(find=find, auto_load=False)
    assert isinstance(await error_of(closed, "disk-q4"), ModelNotFound)
    await loads(closed, "disk-q4")
    assert await said(closed, "disk") == "disk"
    await closed.unload("disk", is_forced=False)
    assert isinstance(await error_of(closed, "disk"), ModelNotFound)
    await closed.close()


async def test_new_names_can_be_configured_while_it_runs() -> None:
    shop = Shop()
    subject = shop.residency(shop.candidate("a"), shop.candidate("gone"))
    await said(subject, "a")
    subject.configure([shop.candidate("a", "alias"), shop.candidate("b")])
    assert await said(subject, "alias") == "a"
    assert set(statuses(subject)) == {"a", "b"}
    assert shop.builds == ["a"]
    await subject.close()


def test_two_models_cannot_have_one_name() -> None:
    shop = Shop()
    with pytest.raises(InvalidValue, match="'same'"):
        shop.residency(shop.candidate("same"), shop.candidate("same"))


async def test_an_error_that_many_are_told_holds_nothing_of_them() -> None:
    shop = Shop()
    broken = shop.candidate("bad", error=LoadFailed("a bad file"))
    subject = Residency((), [broken, shop.candidate("good")], free_bytes=lambda: 1 << 40)
    depths = set()
    for _ in range(5):
        last = (await collect(subject, "bad"))[-1]
        assert isinstance(last, Failed)
        depths.add(sum(1 for _ in traceback.walk_tb(last.error.__traceback__)))
    assert len(depths) <= 2, "the first one was raised by the load, all others from memory"
    await subject.close()
