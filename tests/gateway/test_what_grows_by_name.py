"""What a client may invent leaves nothing behind that grows: names, keys, conversations, paths, headers."""

import asyncio
import functools
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from msgspec import structs
from proxy_stage import Asking, ScriptedNode, answer
from test_gateway_access import keyed, secret_of

from ganglion.gateway.failover import RunningCall
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.metrics import GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import parse_catalogue
from ganglion.gateway.proxy.listener import ProxyListener
from ganglion.gateway.proxy.upstream_request import UpstreamHeads
from ganglion.gateway.routing import table
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.server.gateway.gateway_process import GatewayProcess, build_gateway
from ganglion.server.gateway.setup import GatewaySetup
from ganglion.server.settings import ServerSettings
from ganglion.wire.dialects import USUAL_WIRES
from support.raw_http import read_response, request_bytes
from support.waiting import until

BOUNDED = {
    "_last": 16_384,  # where conversations went
    "_entries": table.MAX_REMEMBERED,  # what names mean
    "_known": 1024,  # names of headers
    "known": 256,  # names of hosts
    "_logged": 1024,  # fields that nobody knows
}
"""What is remembered of what clients write, by the name of what holds it: at most so much."""
FEW, MANY = 500, 10_000


async def _node(asking: Asking, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if asking.line.startswith(b"GET /v1/models"):
        writer.write(answer(b'{"data":[{"id":"m"}]}'))
        return
    said = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "t"}, "finish_reason": "stop"}]
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    writer.write(answer(json.dumps({**said, "usage": usage}).encode()))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[GatewayProcess, ProxyListener, int]]:
    """A whole gateway, with everything that it holds in the open."""
    storage = await keyed(folder, free={}, capped={"tokens_per_minute": 10**12})
    node = ScriptedNode(_node)
    await node.open()
    catalogue = '[[models]]\nid = "all"\nserved_as = "m"\nloadable = false\naliases = ["*"]\n'
    spec = NodeSpec("n", node.url, "openai", wires=USUAL_WIRES)
    settings = GatewaySetup(
        ServerSettings(port=0, has_grpc=False),
        nodes=(spec,),
        catalogue=parse_catalogue(catalogue),
        storage=storage,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(node.close)
        process = await build_gateway(settings, structs.replace(settings.server, port=8000), stack)
        front = process.proxy(await process.open_control_app(stack))
        stack.push_async_callback(front.close)
        tasks = [asyncio.create_task(work) for work in process.parts.background_tasks()]
        stack.push_async_callback(_end, tasks)
        server = await asyncio.get_running_loop().create_server(front.connection, "127.0.0.1", 0)
        stack.callback(server.close)
        await until(lambda: any(view.takes_work for view in process.parts.fleet.nodes.values()), 10)
        yield process, front, server.sockets[0].getsockname()[1]


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def chat(number: int) -> bytes:
    body = {
        "model": f"made-up-{number}",
        "prompt_cache_key": f"conversation {number}",
        "messages": [{"role": "user", "content": f"hello {number}"}],
        "user": f"user {number}",
        "max_tokens": 1,
        f"field-{number}": 1,
    }
    return _post("/v1/chat/completions", body, "free" if number % 2 else "capped", f"x-mine-{number}: 1")


def stranger(number: int) -> bytes:
    return _post("/v1/chat/completions", {"model": "m"}, f"invented-{number}")


def respond(number: int) -> bytes:
    body = {"model": f"other-{number}", "input": f"hello {number}", "conversation": f"conv_{number}"}
    if number % 2:
        body = {"model": f"other-{number}", "input": "hello", "store": False, f"field-{number}": 1}
    return _post("/v1/responses", body, "free")


def look(number: int) -> bytes:
    path = (f"/v1/responses/resp_{number}", f"/v1/path-{number}?q={number}")[number % 2]
    head = f"GET {path} HTTP/1.1\r\nhost: name-{number}.localhost\r\n"
    key = f"authorization: Bearer {secret_of('free').decode()}\r\n"
    return f"{head}{key}x-request-id: r{number}\r\n\r\n".encode()


def _post(path: str, body: dict[str, Any], key: str, *more: str) -> bytes:
    return request_bytes(path, body, secret_of(key).decode(), *more)


async def send(port: int, made: Callable[[int], bytes], numbers: range, expected: int | None) -> None:
    """Send these requests over eight connections, some dozens at a time."""

    async def some(part: range) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(part), 48):
            together = [made(number) for number in part[at : at + 48]]
            writer.write(b"".join(together))
            for _ in together:
                assert expected in (None, (await read_response(reader)).status)
        writer.close()

    await asyncio.gather(*(some(numbers[place::8]) for place in range(8)))


def held(*roots: object) -> dict[str, int]:
    """The sizes of everything that these hold, by the way to it."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, ModuleType | type | str | bytes | int | float):
            continue
        seen.add(id(thing))
        if hasattr(thing, "__len__") and hasattr(thing, "__iter__"):
            sizes[path] = max(sizes.get(path, 0), len(thing))
        waiting += [(f"{path}.{name}", inner) for name, inner in _inside(thing)]
    return sizes


def _inside(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, dict):
        yield from (("[]", value) for value in list(thing.values())[:20])
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from (("[]", value) for value in list(thing)[:20])
    elif isinstance(thing, MethodType):
        yield "self", thing.__self__
    elif isinstance(thing, FunctionType):
        yield from (("cell", cell.cell_contents) for cell in thing.__closure__ or ())
    elif type(thing).__module__.startswith(("ganglion", "prometheus_client")):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*getattr(thing, "__dict__", {}), *slots]
        yield from ((name, getattr(thing, name)) for name in names if hasattr(thing, name))


@pytest.mark.timeout(120)
async def test_nothing_grows_by_what_clients_invent(tmp_path: Path) -> None:
    async with running(tmp_path) as (process, front, port):

        async def all_of(few: range, many: range) -> tuple[dict[str, int], int]:
            await send(port, chat, many, 200)
            await send(port, stranger, many, 401)
            await send(port, respond, few, None)
            await send(port, look, few, None)
            await asyncio.sleep(1.2)  # what is gathered is written by then
            page = (await _metrics(process)).count("\n")
            return held(process, front), page

        before, lines = await all_of(range(0, 60), range(0, FEW))
        after, more_lines = await all_of(range(60, 200), range(FEW, MANY))
        grown = {
            path: (before.get(path, 0), size)
            for path, size in after.items()
            if size > before.get(path, 0) + 8
        }
        beyond = {
            path: sizes for path, sizes in grown.items() if sizes[1] > BOUNDED.get(path.split(".")[-1], 0)
        }
        assert not beyond, beyond
        assert len(after) > 100 and any(path.endswith("._last") for path in grown)  # it looked everywhere
        assert more_lines <= lines + 8
        page = await _metrics(process)
        assert "made-up" not in page and 'model="all"' in page
        assert not len(front.open_admissions) and not len(process.parts.fleet.queue)


async def _metrics(process: GatewayProcess) -> str:
    from prometheus_client import generate_latest

    return "".join(
        generate_latest(registry).decode()
        for registry in (process.proxy_metrics.registry, process.metrics.registry)
    )


def test_every_cache_of_a_function_has_an_end() -> None:
    caches = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
    ours = [cache for cache in caches if getattr(cache, "__module__", "").startswith("ganglion")]
    assert len(ours) >= 5
    for cache in ours:
        by_name = cache.cache_info().maxsize
        takes_something = cache.__wrapped__.__code__.co_argcount > 0
        assert by_name is not None or not takes_something, cache


def test_nodes_that_name_themselves_leave_no_more_series_than_are_bounded() -> None:
    metrics, fleet, pools = GatewayMetrics(), Fleet(), ConnectionPools()
    lines = UpstreamHeads(pools)
    for number in range(20_000):
        name = f"node-{number}"
        spec = NodeSpec(name, f"http://127.0.0.1:{number + 1}")
        fleet.add(spec)
        call = RunningCall(spec, fleet.losses)
        fleet.count_in(name, call)
        lines.to(spec)
        metrics.ended("chat", 200, name, 0.1)
        metrics.retried(name)
        metrics.failed(name)
        fleet.failed(name)
        fleet.remove(name)
        fleet.count_out(name, call)
    sizes = held(metrics, fleet, pools, lines)
    assert max(sizes.values()) <= 16_384 + 1, sizes
    assert not fleet.in_flight and not fleet.nodes
    assert sum(metrics._requests.values()) == 20_000
