"""A streamed response is durable before its last event leaves; whoever goes away leaves nothing behind."""

import asyncio
import json
import os
import time
from pathlib import Path

import httpx
import pytest
from responding import ENDLESS, MEMORY, Asking, ask, deaf_socket, text_of

from ganglion.core.errors import StorageFull, StoreUnavailable
from ganglion.store.database import Store
from support.raw_http import request_bytes
from support.responses_invariants import check, frames_of
from support.waiting import until


class Faults:
    """What goes wrong in the store, by the name of what is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[str, Exception] = {}
        self.delays_s: dict[str, float] = {}
        for name in ("put", "replace"):
            monkeypatch.setattr(Store, name, self._around(name, getattr(Store, name)))

    def _around(self, name: str, inner):
        async def write(store, *values, **named):
            await asyncio.sleep(self.delays_s.get(name, 0.0))
            if name in self.errors:
                raise self.errors[name]
            return await inner(store, *values, **named)

        return write


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


async def left(url: str, said: str, after_s: float) -> str:
    """The id of a streamed response whose client left after so long."""
    async with (
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", "/v1/responses", json=ask(said, stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        created = json.loads((await anext(lines)).removeprefix("data: "))
        await asyncio.sleep(after_s)
    return str(created["response"]["id"])


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_the_last_event_is_told_when_it_can_be_read_again(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        for number in range(20):
            body = ask(f"answer {number}", stream=True)
            async with served.http.stream("POST", "/v1/responses", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: ") and '"type":"response.completed"' in line:
                        told = json.loads(line.removeprefix("data: "))["response"]
                        assert await asking.get(told["id"]) == told


async def test_a_slow_store_delays_only_the_last_event(serving, faults: Faults) -> None:
    faults.delays_s["replace"] = 0.5
    async with serving(storage=MEMORY) as served:
        body = ask("one two three", stream=True)
        arrivals: dict[str, float] = {}
        began_s = time.monotonic()
        async with served.http.stream("POST", "/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    arrivals[line.removeprefix("event: ")] = time.monotonic() - began_s
    late = arrivals.pop("response.completed")
    items_done = {name for name in arrivals if name.endswith(".done")}
    assert late >= 0.5
    assert all(at_s < 0.4 for name, at_s in arrivals.items() if name not in items_done)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(StorageFull("full"), "storage_full"), (StoreUnavailable("gone"), "store_unavailable")],
)
async def test_a_store_that_fails_at_the_end_ends_the_stream_with_response_failed(
    serving, faults: Faults, error: Exception, reason: str
) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        faults.errors["replace"] = error
        failed = await asking.stream("one two")
        assert (failed["status"], failed["error"]["reason"]) == ("failed", reason)
        assert text_of(failed) == "one two"
        assert (await asking.get(failed["id"]))["status"] == "in_progress"
        faults.errors.clear()
        assert await asking.until(failed["id"], "failed") == failed, "the store was told as soon as it heard"


async def test_a_store_that_fails_at_the_beginning_is_a_status(serving, faults: Faults) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        faults.errors["put"] = StorageFull("full")
        for fields in ({"stream": True}, {"stream": False}, {"background": True}):
            answer = await asking.call("POST", "/v1/responses", ask("hi", **fields))
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
            assert answer.headers["retry-after"] == "30"
        assert text_of(await asking.create("hi", store=False)) == "hi"
        assert text_of(await asking.stream("hi", store=False)) == "hi"
        await served.until_idle()


async def test_a_client_that_leaves_in_the_middle_leaves_a_cancelled_response(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        for _ in range(5):
            response_id = await left(served.url, ENDLESS, 0.05)
            await served.until_idle(0.5)
            kept = await asking.until(response_id, "cancelled")
            assert kept["output"][0]["status"] == "incomplete"
            assert text_of(kept).startswith("la")


async def test_a_client_that_leaves_during_the_last_write_gets_what_it_missed(
    serving, faults: Faults
) -> None:
    faults.delays_s["replace"] = 0.3
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        response_id = await left(served.url, "one two", 0.1)
        assert text_of(await asking.until(response_id, "completed")) == "one two"


async def test_an_engine_that_fails_before_the_first_byte_leaves_no_running_response(
    serving, tmp_path
) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        refused = await asking.error("POST", "/v1/responses", ask("!echo fail_at=0\nhi", stream=True))
        assert refused[:2] == (500, "engine_failed")
        await served.until_idle()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_many_clients_leave_at_random_and_nothing_leaks(serving, is_stored: bool) -> None:
    async with serving(storage=MEMORY) as served:
        await Asking(served.http).create("warm up")
        tasks_before, descriptors_before = len(asyncio.all_tasks()), descriptors()

        async def come_and_go(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            content = f"!echo delay=0.005 unbounded=1 first_token_delay={number % 5 * 0.01}\nx y z"
            body = json.dumps(ask(content, stream=number % 2 == 0, store=is_stored)).encode()
            raw = request_bytes("/v1/responses", body)
            writer.write(raw[: len(raw) // 2] if number % 10 == 0 else raw)
            await asyncio.sleep(number % 7 * 0.01)
            writer.transport.abort()

        await asyncio.gather(*(come_and_go(number) for number in range(150)))
        await served.until_idle()
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        await until(lambda: descriptors() <= descriptors_before)


async def test_readers_that_stall_are_cut_and_hold_little_memory(serving) -> None:
    async with serving(storage=MEMORY, stalled_reader_s=0.3, keep_alive_s=0.1) as served:
        asking = Asking(served.http)
        await asking.create("warm up")
        tasks_before, descriptors_before = len(asyncio.all_tasks()), descriptors()
        before_bytes = resident_bytes()
        words = "!echo unbounded=1\n" + "x" * 50
        body = json.dumps(ask(words, stream=True, max_output_tokens=10**6)).encode()
        deaf = [deaf_socket(served.port) for _ in range(6)]
        for each in deaf:
            each.sendall(request_bytes("/v1/responses", body))
        response = await asking.create(words, background=True, max_output_tokens=5_000)
        path = f"/v1/responses/{response['id']}?stream=true"
        follower = deaf_socket(served.port)
        follower.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        neighbour = await asking.stream("!echo delay=0.01\n" + "a " * 20)
        assert neighbour["status"] == "completed"
        await asking.until(response["id"], "incomplete", within_s=10)
        await served.until_idle(5)
        assert resident_bytes() - before_bytes < 64 * 2**20
        for each in (*deaf, follower):
            each.close()
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        await until(lambda: descriptors() <= descriptors_before)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_streams_end_with_their_reason_when_the_server_leaves(serving, tmp_path) -> None:
    async with serving(storage=MEMORY, drain_timeout_s=0.2) as served:
        running = asyncio.create_task(Asking(served.http).stream(ENDLESS))
        await until(lambda: served.slots_used() == 1)
        served.shutdown.ask()
        failed = await running
        assert failed["error"]["reason"] == "shutting_down"
        assert (await asyncio.wait_for(asyncio.gather(served.ended), 3)) == [None]


async def test_every_stored_stream_of_a_crowd_is_there(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        ended = await asyncio.gather(*(asking.stream(f"answer {number}") for number in range(60)))
        for response in ended:
            assert await asking.get(response["id"]) == response
        page = (await served.http.get("/metrics")).text
        assert 'ganglion_requests_in_flight{model="echo"} 0.0' in page


async def test_a_frame_is_one_line(serving) -> None:
    async with serving(storage=MEMORY) as served:
        spread = b'{"model": "echo",\r\n "input": "a\\nb", "stream": true,\n "metadata": {"a":\n "b"}}'
        headers = {"content-type": "application/json"}
        answer = await served.http.post("/v1/responses", content=spread, headers=headers)
    assert text_of(check(answer.content)) == "a\nb"
    assert frames_of(answer.content)[0][1]["response"]["metadata"] == {"a": "b"}
