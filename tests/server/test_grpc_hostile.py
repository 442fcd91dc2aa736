"""Hostile messages over gRPC cost their own call a status, and the server next to nothing."""

import ast
import asyncio
import itertools
import sys
import time
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_calls import connected
from hypothesis import given
from hypothesis import strategies as st

from ganglion.server.grpc import message_limits
from ganglion.server.grpc.message_limits import (
    LARGEST_BYTES,
    MAX_FIELDS,
    METHOD_BYTES,
    NESTED,
    SMALL_BYTES,
    IncomingMessages,
    has_few_fields,
)
from ganglion.wire.salience import salience_pb2 as pb

HOSTILE, NEIGHBOUR = "sk-hostile-0123456789", "sk-neighbour-0123456789"
MEBIBYTE = 2**20


class Watch:
    """Watches this process while it serves: what it holds, and how long it lets nobody else run."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss
        self.grown_bytes = 0
        self.longest_s = 0.0
        """Of processor time between two looks of the event loop."""

    async def run(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)
            self.grown_bytes = max(self.grown_bytes, self._process.memory_info().rss - self._before)


async def test_a_thousand_hostile_messages_take_little_and_hold_up_nobody(serving) -> None:
    async with (
        serving(api_keys=(HOSTILE, NEIGHBOUR)) as served,
        connected(served.rpc, NEIGHBOUR) as neighbour,
    ):
        session_id = await neighbour.opened()
        await neighbour.generate(session_id, append_tokens=[1, 2, 3], max_tokens=1)
        watch = Watch()
        watching = asyncio.create_task(watch.run())
        program = str(Path(__file__).with_name("hostile_grpc.py"))
        hostile = await asyncio.create_subprocess_exec(
            sys.executable, program, served.rpc, HOSTILE, stdout=asyncio.subprocess.PIPE
        )
        output = asyncio.create_task(hostile.communicate())
        calls = 0
        while not output.done():
            assert (await served.http.get("/health/live")).status_code == 200
            assert (await neighbour.call("OpenSession", pb.OpenSessionRequest(model="echo"))).session_id
            calls += 1
        watching.cancel()
        seen = ast.literal_eval((await output)[0].decode())
        assert sum(seen.values()) == 1000
        assert set(seen) == {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, seen
        assert calls > 10
        assert watch.grown_bytes < 64 * MEBIBYTE
        assert watch.longest_s < 0.25, "it was seconds"


async def test_what_a_method_can_need_is_taken(serving) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        session_id = await rpc.opened()
        text = "word " * 600_000
        answer = await rpc.call("Tokenize", pb.TokenizeRequest(model="echo", text=text))
        assert len(answer.tokens) >= 600_000
        error = await rpc.refusal(
            "Generate", pb.GenerateRequest(session_id=session_id, append_tokens=[2**20] * 2**20)
        )
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata())["ganglion-code"] == "context_length_exceeded"
        image = pb.AppendImageRequest(session_id=session_id, data=bytes(4 * MEBIBYTE), mime="image/png")
        assert (await rpc.refusal("AppendImage", image)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["CloseSession", "ForkSession", "OpenSession"])
async def test_a_method_that_needs_little_takes_little(serving, method: str) -> None:
    async with serving() as served, connected(served.rpc) as rpc:
        called = rpc.channel.unary_unary(f"/salience.v1.Salience/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await called(bytes(METHOD_BYTES.get(method, SMALL_BYTES) + 1))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "at most" in (refused.value.details() or "")


async def test_calls_that_send_nothing_are_set_apart_and_keep_no_other_from_being_read(
    serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_limits, "QUICK_S", 0.2)
    async with serving() as served, connected(served.rpc) as silent, connected(served.rpc) as rpc:
        path = "/salience.v1.Salience/OpenSession"
        calls = [silent.channel.stream_stream(path)(timeout=20) for _ in range(40)]
        await asyncio.gather(*(call.wait_for_connection() for call in calls))
        assert await rpc.opened(), "another connection is read at once"
        assert await silent.opened(), "and the same one in its turn"
        ends = [asyncio.create_task(call.code()) for call in calls]
        refused = [await end for end in itertools.islice(asyncio.as_completed(ends), 37)]
        assert set(refused) == {grpc.StatusCode.UNAVAILABLE}, "all but a few"
        for call in calls:
            call.cancel()


async def test_room_is_given_back_however_a_message_ends() -> None:
    room = IncomingMessages()
    for _ in range(2 * message_limits.QUICK_MESSAGES):
        with pytest.raises(ValueError, match="broken"):
            async with room.reading("a", 1.0):
                raise ValueError("broken")
    waits = [asyncio.create_task(_read_for_ever(room, f"{number % 3}")) for number in range(30)]
    await asyncio.sleep(0.01)
    assert room.prompt.used == message_limits.QUICK_MESSAGES
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert room.prompt.used == room.prompt.waiting == room.slow.used == 0


async def _read_for_ever(room: IncomingMessages, tenant: str) -> None:
    async with room.reading(tenant, 60.0):
        await asyncio.Event().wait()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=200), st.integers(0, 64), st.text(max_size=300))
def test_an_honest_message_has_few_fields(tokens: list[int], ranges: int, name: str) -> None:
    message = pb.GenerateRequest(
        session_id=name,
        append_tokens=tokens,
        logprobs_ranges=[pb.Range(start=1, end=2)] * ranges,
        temperature=0.5,
        seed=2**64 - 1,
        priority=-3,
    )
    assert has_few_fields(message.SerializeToString(), NESTED["Generate"])


@given(st.binary(max_size=2000))
def test_any_bytes_are_judged_without_a_failure(data: bytes) -> None:
    has_few_fields(data)


def test_many_fields_are_told_from_few() -> None:
    assert has_few_fields(b"\x32\x00" * MAX_FIELDS)
    assert not has_few_fields(b"\x32\x00" * (MAX_FIELDS + 1))
    assert max(METHOD_BYTES.values()) == LARGEST_BYTES
    many = pb.GenerateRequest(choice=pb.Choice(options=[""] * MAX_FIELDS)).SerializeToString()
    few = pb.GenerateRequest(choice=pb.Choice(options=[""] * (MAX_FIELDS - 1))).SerializeToString()
    assert has_few_fields(few, NESTED["Generate"])
    assert not has_few_fields(many, NESTED["Generate"]), "what is in a message counts too"
    assert set(METHOD_BYTES) <= set(NESTED), "every size is some method's"
