"""The WebSocket of the Responses wire: turns in a row, errors that leave it open, clients that leave."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from responding import ENDLESS, MEMORY, Asking, ask, plain, played, said_to, small, text_of
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ganglion.core.errors import StorageFull
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.store.database import Store
from support.responses_invariants import Invariants
from support.waiting import until

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


class Talking:
    """A socket to a served node; every stream on it is checked."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, said: object = "hello there", **fields: object) -> None:
        await self.socket.send(json.dumps({"type": "response.create"} | ask(said, **fields)))

    async def event(self) -> dict[str, Any]:
        return json.loads(await self.socket.recv())

    async def hear(self) -> dict[str, Any]:
        """The response that the next stream ends with, or the error that comes instead."""
        invariants = Invariants()
        while True:
            event = await self.event()
            if event["type"] == "error":
                return event
            invariants.feed(event["type"], event)
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                return invariants.ended()

    async def create(self, said: object = "hello there", **fields: object) -> dict[str, Any]:
        await self.say(said, **fields)
        return await self.hear()


@asynccontextmanager
async def talking(served, **headers: str):
    address = f"ws://127.0.0.1:{served.port}/v1/responses"
    async with connect(address, additional_headers=headers, max_size=None) as socket:
        yield Talking(socket)


async def test_one_response_after_another_and_unstored_ones_are_continued(serving) -> None:
    engine = played(
        EchoScript(reasoning="hm", calls=(ScriptedCall("weather", '{"a":1}'),)), EchoScript(reply="Rain.")
    )
    async with serving(engine, storage=MEMORY) as served, talking(served) as talk:
        first = await talk.create("Oslo?", tools=[WEATHER], store=False)
        call_id = first["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "wet"}
        second = await talk.create([output], previous_response_id=first["id"], store=False)
        third = await talk.create("thanks", previous_response_id=second["id"])
        assert said_to(engine) == [
            plain("user", "Oslo?"),
            ("assistant", "Oslo?", "hm", None, [(call_id, "weather", '{"a":1}')]),
            ("tool", "wet", None, call_id, []),
            plain("assistant", "Rain."),
            plain("user", "thanks"),
        ]
        forgotten = await talk.create("and?", previous_response_id=first["id"])
        assert (forgotten["status"], forgotten["error"]["code"]) == (404, "previous_response_not_found")
        asking = Asking(served.http)
        assert await asking.get(third["id"]) == third, "stored as over HTTP"
        assert (await asking.error("GET", f"/v1/responses/{second['id']}"))[0] == 404
        lost = ask("more", previous_response_id=third["id"])
        assert (await asking.error("POST", "/v1/responses", lost))[1] == "previous_response_not_found"
        assert (await talk.create("more", previous_response_id=third["id"]))["status"] == "completed"


async def test_stored_responses_are_continued_from_any_connection(serving) -> None:
    async with serving(storage=MEMORY) as served:
        async with talking(served) as talk:
            first = await talk.create("one")
        async with talking(served) as talk:
            second = await talk.create("two", previous_response_id=first["id"])
            assert second["previous_response_id"] == first["id"]
        conversation = await Asking(served.http).ok("POST", "/v1/conversations", {})
        async with talking(served) as talk:
            await talk.create("hi", conversation=conversation["id"])
        items = await Asking(served.http).ok("GET", f"/v1/conversations/{conversation['id']}/items")
        assert len(items["data"]) == 2


async def test_what_is_wrong_with_a_message_is_told_and_the_connection_stays(serving) -> None:
    async with serving(small(100), storage=MEMORY) as served, talking(served) as talk:
        wrong: list[tuple[str | bytes, int, str, str | None]] = [
            ("{", 400, "invalid_json", None),
            ("[]", 400, "invalid_value", None),
            (b"\xff\xfe", 400, "invalid_json", None),
            ("{}", 400, "invalid_value", "type"),
            ('{"type": "response.steer"}', 400, "invalid_value", "type"),
            ('{"type": "response.create"}', 400, "missing_required_parameter", "input"),
        ]
        for message, status, code, param in wrong:
            await talk.socket.send(message)
            told = await talk.hear()
            assert (told["status"], told["error"]["code"], told["error"]["param"]) == (status, code, param)
        for fields, code, param in (
            ({"model": "nobody"}, "model_not_found", "model"),
            ({"background": True}, "invalid_value", "background"),
            ({"stream_id": "a"}, "unsupported_parameter", "stream_id"),
            ({"generate": 5}, "invalid_value", "generate"),
            ({"input": "word " * 200}, "context_length_exceeded", "input"),
            ({"input": "!echo fail_at=0\nx"}, "engine_failed", None),
        ):
            told = await talk.create(**fields)
            assert (told["error"]["code"], told["error"]["param"]) == (code, param)
        assert text_of(await talk.create("still here", stream=True, stream_options={})) == "still here"


async def test_codex_hears_of_an_overflow_by_response_failed(serving) -> None:
    async with (
        serving(small(100), storage=MEMORY) as served,
        talking(served, originator="codex_exec") as talk,
    ):
        failed = await talk.create("word " * 200)
        assert failed["error"]["code"] == "context_length_exceeded"
        assert text_of(await talk.create("shorter")) == "shorter"


async def test_a_warm_up_says_nothing_and_is_continued(serving) -> None:
    engine = played(EchoScript())
    async with serving(engine, storage=MEMORY) as served, talking(served) as talk:
        warm = await talk.create("remember this", generate=False, store=False)
        assert (warm["status"], warm["output"], warm["usage"]["total_tokens"]) == ("completed", [], 0)
        assert engine.requests == []
        await talk.create("go", previous_response_id=warm["id"], generate=True)
        assert [content for _, content, *_ in said_to(engine)] == ["remember this", "go"]


async def test_a_message_that_comes_too_early_is_refused_and_the_answer_goes_on(serving) -> None:
    async with serving(storage=MEMORY) as served, talking(served) as talk:
        await talk.say("!echo delay=0.03\none two three four five")
        await talk.event()
        await talk.say("me too")
        events = []
        while not events or events[-1]["type"] != "response.completed":
            events.append(await talk.event())
        (refused,) = (event for event in events if event["type"] == "error")
        assert "still running" in refused["error"]["message"]
        assert text_of(events[-1]["response"]) == "one two three four five"
        assert text_of(await talk.create("now")) == "now"


async def test_a_message_that_is_too_large_closes_the_connection(serving) -> None:
    async with serving(storage=MEMORY, max_body_bytes=10_000) as served:
        async with talking(served) as talk:
            assert text_of(await talk.create("x" * 5_000)) == "x" * 5_000
            await talk.say("x" * 20_000)
            with pytest.raises(ConnectionClosed) as caught:
                await talk.event()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009
        assert text_of(await Asking(served.http).create("fine")) == "fine"


@pytest.mark.parametrize("is_polite", [True, False])
async def test_a_client_that_leaves_cancels_its_answer(serving, is_polite: bool) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        tasks_before = len(asyncio.all_tasks())
        for moment_s in (0.0, 0.02, 0.05):
            async with talking(served) as talk:
                await talk.say(ENDLESS)
                created = await talk.event()
                await asyncio.sleep(moment_s)
                if not is_polite:
                    talk.socket.transport.abort()
            await served.until_idle(0.5)
            await asking.until(created["response"]["id"], "cancelled")
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)


async def test_many_sockets_come_and_go_and_nothing_leaks(serving) -> None:
    async with serving(storage=MEMORY) as served:
        await Asking(served.http).create("warm up")
        tasks_before = len(asyncio.all_tasks())

        async def come_and_go(number: int) -> None:
            async with talking(served) as talk:
                for _ in range(number % 3):
                    await talk.create("hi", store=False)
                await talk.say(ENDLESS, store=number % 2 == 0)
                await asyncio.sleep(number % 5 * 0.01)
                talk.socket.transport.abort()

        await asyncio.gather(*(come_and_go(number) for number in range(40)))
        await served.until_idle()
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)


async def test_a_key_and_an_origin_are_asked_for(serving) -> None:
    async with serving(storage=MEMORY, api_keys=("right",)) as served:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "Bearer right", "origin": "https://evil.example"}, 403),
            ({"authorization": "Bearer right", "host": "evil.example"}, 403),
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with talking(served, **headers):
                    pass
            assert caught.value.response.status_code == status
            assert b'"error"' in (caught.value.response.body or b"")
        own = f"http://127.0.0.1:{served.port}"
        for headers in ({}, {"origin": own}):
            async with talking(served, authorization="Bearer right", **headers) as talk:
                assert text_of(await talk.create("hi")) == "hi"


async def test_a_reader_that_stalls_is_cut(serving) -> None:
    async with serving(storage=MEMORY, stalled_reader_s=0.3) as served:
        tasks_before = len(asyncio.all_tasks())
        address = f"ws://127.0.0.1:{served.port}/v1/responses"
        async with connect(address, max_queue=1, ping_interval=None) as socket:
            words = "!echo unbounded=1\n" + "x" * 2_000
            await Talking(socket).say(words, max_output_tokens=10**6, store=False)
            await until(lambda: served.slots_used() == 1)
            await served.until_idle(5)
            with pytest.raises(ConnectionClosed):
                while True:
                    await socket.recv()
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)


async def test_a_store_that_is_full_is_told_and_the_next_turn_works(serving, monkeypatch) -> None:
    put = Store.put
    is_full = True

    async def refusing(self, *values, **named):
        if is_full:
            raise StorageFull("The disk is full.")
        return await put(self, *values, **named)

    monkeypatch.setattr(Store, "put", refusing)
    async with serving(storage=MEMORY) as served, talking(served) as talk:
        told = await talk.create("hi")
        assert (told["status"], told["error"]["code"]) == (507, "storage_full")
        assert text_of(await talk.create("hi", store=False)) == "hi"
        is_full = False
        assert text_of(await talk.create("hi")) == "hi"


async def test_a_drain_ends_what_runs_refuses_what_comes_and_closes(serving) -> None:
    async with serving(storage=MEMORY, drain_timeout_s=0.4) as served:
        async with talking(served) as busy, talking(served) as idle:
            await busy.say(ENDLESS)
            await until(lambda: served.slots_used() == 1)
            served.shutdown.ask()
            await asyncio.sleep(0.05)
            refused = await idle.create("late")
            assert (refused["status"], refused["error"]["code"]) == (503, "shutting_down")
            failed = await busy.hear()
            assert failed["error"]["reason"] == "shutting_down"
            for talk in (busy, idle):
                with pytest.raises(ConnectionClosed) as caught:
                    await talk.event()
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1012
        await asyncio.wait_for(served.ended, 3)
