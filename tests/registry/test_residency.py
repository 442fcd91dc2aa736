"""Several models as one engine."""

import asyncio

import pytest

from ganglion.core.errors import GanglionError, InvalidValue, LoadFailed, ModelNotFound, ShuttingDown
from ganglion.core.events import Event, Failed, Progress
from ganglion.core.fold import fold
from ganglion.core.request import Request, TextPrompt
from ganglion.engines.echo import EchoEngine, EchoSettings
from ganglion.engines.echo_script import Script
from ganglion.registry.residency import Residents


def echo(
    model_id: str, *aliases: str, open_delay_s: float = 0.0, open_error: GanglionError | None = None
) -> EchoEngine:
    settings = EchoSettings(model_id, aliases, open_delay_s=open_delay_s, open_error=open_error)
    return EchoEngine(settings, Script(reply=model_id))


async def collect(engine: Residents, model: str) -> list[Event]:
    return [event async for event in engine.generate(Request("1", model, TextPrompt("hi")))]


async def said(engine: Residents, model: str) -> str:
    return fold(await collect(engine, model)).text("text")


async def error_of(engine: Residents, model: str) -> GanglionError:
    last = (await collect(engine, model))[-1]
    assert isinstance(last, Failed)
    return last.error


async def test_it_dispatches_by_id_then_alias_then_catch_all() -> None:
    residents = Residents([echo("a", "small", "b"), echo("b", "*"), echo("c", "Large")])
    await residents.open()
    names = {"a": "a", "b": "b", "c": "c", "SMALL": "a", "large": "c", "gpt-4": "b", "C": "b"}
    assert {name: await said(residents, name) for name in names} == names
    assert [state.id for state in residents.models()] == ["a", "b", "c"]
    await residents.close()


async def test_an_unknown_model_is_told_what_is_here() -> None:
    residents = Residents([echo("qwen3-4b"), echo("other")])
    await residents.open()
    error = await error_of(residents, "qwen3")
    assert isinstance(error, ModelNotFound)
    assert error.hint == "Did you mean qwen3-4b? Here: qwen3-4b, other."
    await residents.close()


async def test_one_that_cannot_open_stays_listed_while_the_others_serve() -> None:
    broken = LoadFailed("a bad file")
    residents = Residents([echo("bad", open_error=broken), echo("good")])
    await residents.open()
    assert [(state.status, state.error) for state in residents.models()] == [
        ("failed", "a bad file"),
        ("loaded", None),
    ]
    assert await error_of(residents, "bad") is broken
    assert await said(residents, "good") == "good"
    await residents.close()


async def test_when_none_can_open_the_first_reason_is_raised() -> None:
    residents = Residents(
        [echo("x", open_error=LoadFailed("first")), echo("y", open_error=LoadFailed("second"))]
    )
    with pytest.raises(LoadFailed, match="first"):
        await residents.open()
    await residents.close()


async def test_they_open_one_after_another_and_requests_wait_for_theirs() -> None:
    residents = Residents([echo("first", open_delay_s=0.02), echo("second", open_delay_s=0.02)])
    opening = asyncio.create_task(residents.open())
    await asyncio.sleep(0.01)
    assert [state.status for state in residents.models()] == ["loading", "unloaded"]
    waiting = asyncio.create_task(collect(residents, "second"))
    assert await said(residents, "first") == "first"
    assert [state.status for state in residents.models()] == ["loaded", "loading"]
    events = await waiting
    assert events[0] == Progress("queued", 0, 1)
    assert fold(events).text("text") == "second"
    await opening
    await residents.close()


async def test_closing_while_one_loads_ends_the_wait_for_it() -> None:
    residents = Residents([echo("slow", open_delay_s=30)])
    opening = asyncio.create_task(residents.open())
    waiting = asyncio.create_task(error_of(residents, "slow"))
    await asyncio.sleep(0.01)
    opening.cancel()
    await residents.close()
    assert isinstance(await waiting, ShuttingDown)


def test_two_models_cannot_have_one_name() -> None:
    with pytest.raises(InvalidValue, match="'same'"):
        Residents([echo("same"), echo("same")])
