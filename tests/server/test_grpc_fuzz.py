"""Ten thousand calls that no client of ours would make: each ends with a typed status, and nothing stays."""

import asyncio
import contextlib
import gc
import itertools
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_calls import SALIENCE, connected
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganglion.server.grpc.message_limits import LARGEST_BYTES
from ganglion.sessions.settings import SessionSettings
from support.waiting import until

AT_ONCE = 64
EXISTS = "a session that exists"
METHODS = [f"/{SALIENCE.full_name}/{method.name}" for method in SALIENCE.methods]
Code = grpc.StatusCode

NUMBERS = {
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 0, 0, 1, 2, 7, 2**31 - 1, 2**32 - 1]),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: st.sampled_from([0, 0, 1, -1, -(2**31), 2**31 - 1]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_FLOAT: st.sampled_from([0.5, 0.7, 1.0, 0.0, -1.0, 1e38, math.nan, math.inf]),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, -1.0, 1e-9, 0.2, 1e300, math.nan, math.inf]),
    FieldDescriptor.TYPE_STRING: st.sampled_from(["", "echo", "echo", "\0", "ß" * 300, "image/png"]),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=300),
}


def made(kind: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """Any message of a kind, as its fields; it names a session that exists more often than not."""
    fields = {}
    for field in kind.fields:
        one = made(field.message_type) if field.message_type else NUMBERS[field.type]
        fields[field.name] = st.lists(one, max_size=4) if field.is_repeated else one
    named = {"session_id": st.sampled_from([EXISTS, EXISTS, EXISTS, "", "sess_x"])}
    return st.fixed_dictionaries(
        {name: named[name] for name in fields if name in named},
        optional={name: field for name, field in fields.items() if name not in named},
    )


REQUESTS = st.one_of(
    [st.tuples(st.just(method.name), made(method.input_type)) for method in SALIENCE.methods]
)


def drawn(count: int) -> list[tuple[str, dict[str, Any]]]:
    requests: list[tuple[str, dict[str, Any]]] = []

    @settings(max_examples=count, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(REQUESTS)
    def draw(request: tuple[str, dict[str, Any]]) -> None:
        requests.append(request)

    draw()
    return requests


def message_of(name: str, fields: dict[str, Any], session_id: str) -> Message:
    kind = GetMessageClass(SALIENCE.methods_by_name[name].input_type)
    if fields.get("session_id") == EXISTS:
        fields = fields | {"session_id": session_id}
    if "max_tokens" in fields:
        fields = fields | {"max_tokens": fields["max_tokens"] % 4}
    return kind(**fields)


async def status(channel: grpc.aio.Channel, path: str, data: bytes) -> Code:
    call = channel.unary_stream(path)(data, timeout=30)
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await call.code()


async def message_after_cancel(channel: grpc.aio.Channel, path: str) -> Code:
    call = channel.stream_stream(path)(timeout=30)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError):
        await call.write(b"\x0a\x01a")
        call.cancel()
        await call.write(b"\x0a\x01b")
    return await call.code()


async def all_of(calls: list[Callable[[], Awaitable[Code]]]) -> Counter[Code]:
    seen: Counter[Code] = Counter()
    for start in range(0, len(calls), AT_ONCE):
        seen.update(await asyncio.gather(*(call() for call in calls[start : start + AT_ONCE])))
    return seen


async def test_ten_thousand_strange_calls_end_with_typed_statuses_and_leave_nothing(serving, capsys) -> None:
    chance = random.Random(5)
    short = SessionSettings(default_ttl_s=3.0, max_ttl_s=3.0)
    requests = drawn(1000)
    async with serving(sessions=short) as served:
        before = len(asyncio.all_tasks())
        async with connected(served.rpc) as rpc:
            channel, session_ids = rpc.channel, [await rpc.opened() for _ in range(300)]
            real = [message_of(*each, "sess_y").SerializeToString() for each in requests[:50]]
            calls: list[Callable[[], Awaitable[Code]]] = []
            for _ in range(4000):
                data = bytearray(chance.choice(real) if chance.random() < 0.5 else chance.randbytes(40))
                for _ in range(chance.randrange(4)):
                    data[chance.randrange(len(data) or 1) : 1] = chance.randbytes(2)
                path, raw = chance.choice(METHODS), bytes(data)
                calls.append(lambda path=path, raw=raw: status(channel, path, raw))
            for name, fields in itertools.islice(itertools.cycle(requests), 3500):
                raw = message_of(name, fields, chance.choice(session_ids)).SerializeToString()
                path = f"/{SALIENCE.full_name}/{name}"
                calls.append(lambda path=path, raw=raw: status(channel, path, raw))
            for number in range(750):
                path = chance.choice([f"/x{number}/Y", f"{METHODS[0]}{number}", "/", "/ß/%00", "//", "/a"])
                calls.append(lambda path=path: status(channel, path, b""))
            for _ in range(747):
                path = chance.choice(METHODS)
                calls.append(lambda path=path: message_after_cancel(channel, path))
            chance.shuffle(calls)
            large = bytes(LARGEST_BYTES + 1)
            seen = await all_of(calls)
            for path in (
                METHODS[0],
                "/salience.v1.Salience/AppendImage",
                "/salience.v1.Salience/RestoreSession",
            ):
                found = await status(channel, path, large)
                assert found is Code.RESOURCE_EXHAUSTED
                seen[found] += 1
        async with connected(served.rpc) as vanishing:
            open_calls = [vanishing.channel.stream_stream(METHODS[1])(timeout=60) for _ in range(1000)]
            await asyncio.gather(*(call.wait_for_connection() for call in open_calls))
            seen[Code.CANCELLED] += len(open_calls)
        del open_calls
        total = seen.total()
        assert total >= 10_000
        assert not {Code.UNKNOWN, Code.INTERNAL, Code.DEADLINE_EXCEEDED} & set(seen), seen
        assert len(seen) >= 7, seen
        async with connected(served.rpc) as rpc:
            assert await rpc.opened(), "and it still answers"
        await served.until_idle()
        await until(lambda: gc.collect() >= 0 and len(asyncio.all_tasks()) <= before + 3, 10)
        await asyncio.sleep(4.5)
        page = (await served.http.get("/metrics")).text
        assert "ganglion_sessions_open 0.0" in page
        assert "ganglion_session_tokens 0.0" in page
        assert 'code="UNKNOWN"' not in page
    with capsys.disabled():
        told = ", ".join(f"{code.name} {count}" for code, count in seen.most_common())
        print(f"\nrpc fuzz: {total} calls, {told}")
