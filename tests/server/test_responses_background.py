"""Background responses outlive their client, are followed, resumed and cancelled, and end as servers do."""

import asyncio
import json

import httpx
import pytest
from responding import ENDLESS, MEMORY, SLOW, Asking, ask, played, small, text_of

from ganglion.core.errors import StorageFull
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.server.life.storage import StoreTarget
from ganglion.server.responses import background
from ganglion.store.database import Store
from support.responses_invariants import check
from support.waiting import until

WORDS = " ".join(f"word{number}" for number in range(20))


async def begun(served, said: str, **fields: object) -> str:
    """The id of a background response whose client left after the first bytes of its stream."""
    body = ask(said, background=True, stream=True, **fields)
    async with served.http.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                return str(json.loads(line.removeprefix("data: "))["response"]["id"])
    raise AssertionError("no event came")


async def test_it_is_answered_at_once_and_read_while_it_runs(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        queued = await asking.create("!echo delay=0.05 reasoning=hm\none two three", background=True)
        assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
        running = await asking.until(queued["id"], "in_progress")
        assert running["usage"] is None
        done = await asking.until(queued["id"], "completed")
        assert text_of(done) == "one two three"
        assert [item["type"] for item in done["output"]] == ["reasoning", "message"]


async def test_it_outlives_its_client(serving) -> None:
    async with serving(storage=MEMORY) as served:
        response_id = await begun(served, SLOW + WORDS)
        assert text_of(await Asking(served.http).until(response_id, "completed")) == WORDS


async def test_it_is_resumed_at_every_number_while_it_runs_and_afterwards(serving, monkeypatch) -> None:
    monkeypatch.setattr(background, "SAVE_EVENTS_S", 0.05)
    engine = played(
        EchoScript(reasoning="hm hm", reply=WORDS, calls=(ScriptedCall("weather", '{"a": 1}'),), delay_s=0.01)
    )
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, "go", tools=tools)
        whole = await asking.resume(response_id)
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert whole[1]["type"] == "response.queued"
        assert whole[-1]["response"] == await asking.get(response_id)
        for number in range(len(whole) - 1):
            assert await asking.resume(response_id, number) == whole[number + 1 :]
        other_id = await begun(served, "go", tools=tools)
        readers = (asking.resume(other_id, after) for after in range(0, len(whole) - 1, 5))
        heard = await asyncio.gather(*readers)
        later = await asking.resume(other_id)
        for after, events in zip(range(0, len(whole) - 1, 5), heard, strict=True):
            assert events == later[after + 1 :]


async def test_a_reader_beyond_the_end_is_told_the_end(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, "!echo delay=0.05\none two three")
        (last,) = await asking.resume(response_id, 500)
        assert (last["type"], last["sequence_number"]) == ("response.completed", 501)
        (again,) = await asking.resume(response_id, 500)
        assert again == last
        assert (await asking.error("GET", f"/v1/responses/{response_id}", stream="true", starting_after="x"))[
            2
        ]


async def test_two_readers_hear_the_same_and_one_that_leaves_disturbs_nobody(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, SLOW + WORDS)
        one, two = (
            asyncio.create_task(asking.resume(response_id)),
            asyncio.create_task(asking.resume(response_id)),
        )
        async with served.http.stream("GET", f"/v1/responses/{response_id}?stream=true") as leaving:
            await anext(leaving.aiter_bytes())
        assert await one == await two
        assert (await one)[-1]["type"] == "response.completed"


async def test_it_is_cancelled_and_says_so(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, ENDLESS)
        following = asyncio.create_task(asking.resume(response_id))
        await asyncio.sleep(0.1)
        cancelled = await asking.ok("POST", f"/v1/responses/{response_id}/cancel")
        await served.until_idle(0.5)
        assert cancelled["status"] == "cancelled"
        assert cancelled["output"][0]["status"] == "incomplete"
        assert text_of(cancelled).startswith("la la")
        last = (await following)[-1]
        assert (last["type"], last["response"]) == ("response.incomplete", cancelled)
        assert await asking.ok("POST", f"/v1/responses/{response_id}/cancel") == cancelled
        assert await asking.get(response_id) == cancelled
        assert (await asking.resume(response_id))[-1] == last


async def test_cancelling_what_ended_answers_it_and_what_never_ran_so_is_refused(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        done = await asking.until((await asking.create("hi", background=True))["id"], "completed")
        assert await asking.ok("POST", f"/v1/responses/{done['id']}/cancel") == done
        plain = await asking.create("hi")
        refused = await asking.error("POST", f"/v1/responses/{plain['id']}/cancel")
        assert refused[:2] == (400, "invalid_value")
        streamed = await asking.error("GET", f"/v1/responses/{plain['id']}", stream="true")
        assert streamed == (400, "invalid_value", "stream")


@pytest.mark.parametrize("moment_s", [0.0, 0.002, 0.01, 0.02, 0.03])
async def test_whenever_it_is_cancelled_it_ends_once_and_the_same_for_everybody(
    serving, moment_s: float
) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response = await asking.create("!echo delay=0.002\n" + WORDS[:80], background=True)
        following = asyncio.create_task(asking.resume(response["id"]))
        await asyncio.sleep(moment_s)
        path = f"/v1/responses/{response['id']}/cancel"
        one, two = await asyncio.gather(asking.ok("POST", path), asking.ok("POST", path))
        last = (await following)[-1]["response"]
        assert one == two == last == await asking.get(response["id"])
        assert one["status"] in ("cancelled", "completed")


async def test_deleting_it_while_it_runs_ends_it(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, ENDLESS)
        following = asyncio.create_task(asking.resume(response_id))
        await asyncio.sleep(0.05)
        await asking.ok("DELETE", f"/v1/responses/{response_id}")
        await served.until_idle(0.5)
        assert (await following)[-1]["response"]["status"] == "cancelled"
        assert (await asking.error("GET", f"/v1/responses/{response_id}"))[0] == 404


async def test_a_failure_ends_it_and_is_kept(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, "!echo fail_at=2\none two three")
        failed = await asking.until(response_id, "failed")
        assert failed["error"]["reason"] == "engine_failed"
        assert (await asking.resume(response_id))[-1]["response"] == failed


async def test_truncation_is_honoured_in_the_background_too(serving) -> None:
    async with serving(small(60), storage=MEMORY) as served:
        asking = Asking(served.http)
        turns = [{"role": "user", "content": f"turn {number} " + "x " * 10} for number in range(8)]
        response = await asking.create(turns, background=True, truncation="auto")
        assert text_of(await asking.until(response["id"], "completed", "incomplete")).startswith("turn 7")


async def test_a_silent_run_is_heard_to_live_and_the_stream_opens_at_once(serving) -> None:
    async with serving(storage=MEMORY, keep_alive_s=0.05) as served:
        asking = Asking(served.http)
        response = await asking.create("!echo first_token_delay=0.4\nhi", background=True)
        async with served.http.stream(
            "GET", f"/v1/responses/{response['id']}?stream=true&starting_after=2"
        ) as heard:
            body = b"".join([part async for part in heard.aiter_bytes()])
        check(body, after=2)
        assert body.count(b"event: response.in_progress\n") > 3


async def test_a_restart_in_the_middle_leaves_a_failed_response_whose_stream_ends(serving, tmp_path) -> None:
    storage = StoreTarget(tmp_path / "ganglion.db")
    async with serving(storage=storage, drain_timeout_s=5) as served:
        asking = Asking(served.http)
        response_id = await begun(served, "!echo delay=0.05 unbounded=1\nla")
        following = asyncio.create_task(asking.resume(response_id))
        await asyncio.sleep(0.7)
        served.shutdown.ask()
        await asyncio.sleep(0.2)
        refused = ask("late", background=True)
        assert (await asking.error("POST", "/v1/responses", refused))[:2] == (503, "shutting_down")
        assert (await asking.get(response_id))["status"] == "in_progress", "a drain lets it run"
        served.shutdown.ask()
        last = (await following)[-1]
        await asyncio.wait_for(asyncio.gather(served.ended, return_exceptions=True), 3)
    assert (last["type"], last["response"]["error"]["reason"]) == ("response.failed", "shutting_down")
    async with serving(storage=storage) as served:
        asking = Asking(served.http)
        assert await asking.get(response_id) == last["response"]
        assert (await asking.resume(response_id))[-1] == last


async def test_a_short_run_is_finished_by_a_drain(serving, tmp_path) -> None:
    storage = StoreTarget(tmp_path / "ganglion.db")
    async with serving(storage=storage, drain_timeout_s=5) as served:
        response_id = await begun(served, "!echo delay=0.02\n" + WORDS)
        served.shutdown.ask()
        await asyncio.wait_for(served.ended, 4)
    async with serving(storage=storage) as served:
        assert text_of(await Asking(served.http).get(response_id)) == WORDS


async def test_runs_hold_places_like_all_other_work(serving) -> None:
    async with serving(storage=MEMORY, max_in_flight=3) as served:
        asking = Asking(served.http)
        ids = [(await asking.create(ENDLESS, background=True))["id"] for _ in range(3)]
        refused = await asking.call("POST", "/v1/responses", ask("hi", background=True))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"]
        for response_id in ids:
            await asking.ok("POST", f"/v1/responses/{response_id}/cancel")
        assert text_of(await asking.create("hi")) == "hi"


async def test_what_the_store_holds_is_not_held_in_memory_too(serving, monkeypatch) -> None:
    monkeypatch.setattr(background, "SAVE_EVENTS_S", 0.02)
    longest = 0
    save_new = background.BackgroundRun.save_new

    async def watched(run: background.BackgroundRun) -> None:
        nonlocal longest
        await save_new(run)
        longest = max(longest, len(run.unsaved()))

    monkeypatch.setattr(background.BackgroundRun, "save_new", watched)
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, "!echo delay=0.001\n" + "word " * 600)
        events = await asking.resume(response_id)
    assert len(events) > 600
    assert longest < 200


async def test_a_store_that_fails_under_a_run_fails_it_and_is_told_when_it_works_again(
    serving, monkeypatch
) -> None:
    is_full = False
    replace = Store.replace

    async def refusing(self, *values, **named):
        if is_full:
            raise StorageFull("The disk is full.")
        return await replace(self, *values, **named)

    monkeypatch.setattr(Store, "replace", refusing)
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await begun(served, SLOW + WORDS)
        following = asyncio.create_task(asking.resume(response_id))
        is_full = True
        last = (await following)[-1]
        assert (last["type"], last["response"]["error"]["reason"]) == ("response.failed", "storage_full")
        is_full = False
        failed = await asking.until(response_id, "failed")
        assert failed == last["response"]
        assert (await asking.resume(response_id))[-1] == last


async def test_many_runs_and_readers_that_come_and_go_leave_nothing_behind(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        await asking.create("warm up")
        tasks_before = len(asyncio.all_tasks())
        ids = [(await asking.create(ENDLESS, background=True))["id"] for _ in range(20)]

        async def come_and_go(number: int) -> None:
            path = f"/v1/responses/{ids[number % 20]}?stream=true"
            async with httpx.AsyncClient(base_url=served.url) as http, http.stream("GET", path) as answer:
                await anext(answer.aiter_bytes())

        await asyncio.gather(*(come_and_go(number) for number in range(40)))
        for response_id in ids:
            path = f"/v1/responses/{response_id}"
            await (asking.ok("DELETE", path) if hash(path) % 2 else asking.ok("POST", f"{path}/cancel"))
        await served.until_idle()
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)


async def test_a_run_of_another_server_is_followed_and_cancelled_through_the_store(serving, tmp_path) -> None:
    storage = StoreTarget(tmp_path / "ganglion.db")
    async with serving(storage=storage) as here, serving(storage=storage) as there:
        one, other = Asking(here.http), Asking(there.http)
        response_id = await begun(here, "!echo delay=0.05\n" + WORDS)
        assert (await other.get(response_id))["status"] in ("queued", "in_progress")
        whole = await other.resume(response_id)
        assert whole == await one.resume(response_id)
        endless = await begun(here, ENDLESS)
        cancelled = await other.ok("POST", f"/v1/responses/{endless}/cancel")
        assert cancelled["status"] == "cancelled"
        await here.until_idle(2)
        assert (await one.get(endless))["status"] == "cancelled"
        last = (await one.resume(endless))[-1]
        assert (last["type"], last["response"]) == ("response.incomplete", cancelled)
