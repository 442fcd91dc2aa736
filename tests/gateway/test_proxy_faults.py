"""Nodes that die, hang and lie: before the first byte another one answers, after it the wire says so."""

import asyncio
import gc
import json
import random

import pytest
from proxy_stage import CHAT, SSE_HEAD, STREAM, Asking, Script, always, answer, chunk, post, staged

from ganglion.core.errors import ModelNotFound
from ganglion.gateway.proxy.attempt import NodeAttempt
from ganglion.gateway.proxy.exchange import ProxyExchange
from ganglion.gateway.proxy.listener import ProxySettings
from ganglion.gateway.routing.decision import ChosenNode, ColdModel, NoRoute
from support.raw_http import read_response
from support.waiting import until

GOOD = b'{"ok":true,"usage":{"prompt_tokens":1,"completion_tokens":1}}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
MESSAGE = b'{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hello"}]}'


def told(code: str, status: str) -> Script:
    return always(answer(b'{"error":{"message":"no","code":"%b"}}' % code.encode(), status=status))


def dies(after: bytes = b"", *, with_reset: bool = True) -> Script:
    """A node whose connection ends after these bytes."""

    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if after:
            writer.write(after)
            await writer.drain()
            await asyncio.sleep(0.02)
        if with_reset:
            writer.transport.abort()
        else:
            writer.close()

    return script


async def hangs(_: Asking, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await reader.read()


HALF = answer(b"x" * 100)[:-50]


@pytest.mark.parametrize(
    "first",
    [
        dies(),
        dies(with_reset=False),
        dies(b"HTTP/1.1 200 OK\r\ncontent-le"),
        dies(HALF),
        dies(HALF, with_reset=False),
        dies(SSE_HEAD),
        dies(SSE_HEAD + b"20\r\ndata: {}\n", with_reset=False),
        always(b"this is not HTTP at all\r\n\r\n"),
        always(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000),
        told("shutting_down", "503 Service Unavailable"),
        told("lease_lost", "503 Service Unavailable"),
        told("model_loading", "503 Service Unavailable"),
        told("model_not_found", "404 Not Found"),
        told("engine_failed", "500 Internal Server Error"),
        told("x", "502 Bad Gateway"),
        told("invalid_api_key", "401 Unauthorized"),
    ],
)
async def test_whatever_happens_to_a_node_before_the_first_byte_another_one_answers(first: Script) -> None:
    async with staged(first, always(answer(GOOD))) as stage:
        heard = await stage.ask(post("/v1/chat/completions", CHAT))
        assert (heard.status, heard.body) == (200, GOOD)
        assert [len(node.asked) for node in stage.nodes.values()] == [1, 1]
        assert stage.chooser.asked[1].tried == {"n0"}
        assert stage.is_settled


async def test_a_node_that_cannot_be_reached_is_left_and_looked_at() -> None:
    async with staged(always(b""), always(answer(GOOD))) as stage:
        await stage.nodes["n0"].close()
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).body == GOOD
        assert stage.poked == ["n0"] and stage.is_settled


async def test_every_node_is_asked_as_long_as_none_of_them_ran_it() -> None:
    busy = told("overloaded", "503 Service Unavailable")
    async with staged(busy, busy, busy, always(answer(GOOD))) as stage:
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 200


async def test_when_nobody_is_left_the_last_nodes_own_words_are_told() -> None:
    busy = told("overloaded", "503 Service Unavailable")
    async with staged(busy, busy) as stage:
        heard = await stage.ask(post("/v1/chat/completions", CHAT))
        assert heard.status == 503 and heard.body == b'{"error":{"message":"no","code":"overloaded"}}'
        assert stage.keeper.places[0].settled == [None]


async def test_when_the_only_node_is_gone_the_client_is_told_which() -> None:
    async with staged(always(b"")) as stage:
        await stage.nodes["n0"].close()
        heard = await stage.ask(post("/v1/chat/completions", CHAT))
        assert heard.status == 502 and heard.header(b"retry-after") == b"2"
        error = json.loads(heard.body)["error"]
        assert error["code"] == "upstream_unavailable" and error["node"] == "n0"
        assert stage.keeper.places[0].settled == [None] and stage.is_settled


@pytest.mark.parametrize("poison", [dies(), told("engine_failed", "500 Internal Server Error")])
async def test_a_poisonous_request_touches_two_nodes_and_is_then_known(poison: Script) -> None:
    async with staged(poison, poison, poison) as stage:
        first = await stage.ask(post("/v1/chat/completions", CHAT))
        assert first.status in (500, 502)
        assert [len(node.asked) for node in stage.nodes.values()] == [1, 1, 0]
        again = await stage.ask(post("/v1/chat/completions", CHAT))
        assert again.status == 422 and json.loads(again.body)["error"]["code"] == "request_quarantined"
        assert [len(node.asked) for node in stage.nodes.values()] == [1, 1, 0]
        assert stage.is_settled


@pytest.mark.parametrize(
    ("path", "body", "sent", "ending"),
    [
        ("/v1/chat/completions", STREAM, EVENT, b'data: {"error":{'),
        ("/v1/completions", b'{"model":"m","stream":true,"prompt":"a"}', EVENT, b'data: {"error":{'),
        ("/v1/messages", MESSAGE, b"event: ping\ndata: {}\n\n", b'event: error\ndata: {"type":"error"'),
    ],
)
async def test_a_node_that_dies_in_a_stream_leaves_the_wires_own_error_behind(
    path: str, body: bytes, sent: bytes, ending: bytes
) -> None:
    for cut in (chunk(sent), chunk(sent + b"data: half an ev"), chunk(sent) + b"40\r\ndata"):
        async with staged(dies(SSE_HEAD + cut), always(answer(GOOD))) as stage:
            heard = await stage.ask(post(path, body))
            assert heard.status == 200 and not heard.is_cut
            assert heard.body.startswith(sent + ending) and heard.body.count(b"upstream") <= 1
            assert heard.body.endswith(b"\n\n") and b"[DONE]" not in heard.body and b"half" not in heard.body
            assert len(stage.nodes["n1"].asked) == 0
            usage = stage.keeper.places[0].settled[0]
            said = 0 if b"ping" in sent else 1
            assert usage is not None and usage.completion_tokens == said and stage.is_settled


async def test_a_line_stream_ends_in_a_line_that_tells_the_error() -> None:
    head = SSE_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
    line = b'{"message":{"content":"a"},"done":false}\n'
    async with staged(dies(head + chunk(line + b'{"half'))) as stage:
        heard = await stage.ask(post("/api/chat", CHAT))
        first, second = heard.body.splitlines(keepends=True)
        assert first == line and "broke off" in json.loads(second)["error"]


async def test_a_large_body_that_is_cut_cuts_the_client_too() -> None:
    async with staged(dies(answer(b"x" * 900_000)[:-100])) as stage:
        reader, writer = await stage.send(post("/v1/embeddings", b'{"model":"m"}'))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_response(reader)
        writer.close()
        await until(lambda: stage.is_settled)


async def test_a_stranger_that_ends_without_its_last_event_is_not_believed() -> None:
    async with staged(always(SSE_HEAD + chunk(EVENT) + b"0\r\n\r\n"), is_foreign=True) as stage:
        heard = await stage.ask(post("/v1/chat/completions", STREAM))
        assert heard.body.startswith(EVENT + b'data: {"error":{') and not heard.is_cut
    whole = EVENT + b"data: [DONE]\n\n"
    async with staged(always(SSE_HEAD + chunk(whole) + b"0\r\n\r\n"), is_foreign=True) as stage:
        assert (await stage.ask(post("/v1/chat/completions", STREAM))).body == whole


async def test_a_node_that_hangs_is_given_up_in_the_wires_words() -> None:
    settings = ProxySettings(first_byte_s=0.2, idle_s=0.2)

    async def stalls(_: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENT))
        await reader.read()

    async with staged(hangs, settings=settings) as stage:
        chat, message = await asyncio.gather(
            stage.ask(post("/v1/chat/completions", CHAT)), stage.ask(post("/v1/messages", CHAT))
        )
        assert chat.status == 504 and json.loads(chat.body)["error"]["code"] == "deadline_exceeded"
        assert message.status == 504 and json.loads(message.body)["error"]["type"] == "timeout_error"
        assert stage.is_settled
    async with staged(stalls, settings=settings) as stage:
        heard = await stage.ask(post("/v1/chat/completions", STREAM))
        assert heard.body.startswith(EVENT + b'data: {"error":{') and b"deadline_exceeded" in heard.body


async def test_a_head_that_waits_for_its_first_event_leaves_after_a_second() -> None:
    async def thinks(_: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        await reader.read()

    async with staged(thinks) as stage:
        reader, writer = await stage.send(post("/v1/chat/completions", STREAM))
        async with asyncio.timeout(3):
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


async def test_a_client_that_leaves_takes_its_work_with_it() -> None:
    gone = asyncio.Event()

    async def watches(_: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENT * 3))
        try:
            await reader.read()
        finally:
            gone.set()

    async with staged(watches) as stage:
        reader, writer = await stage.send(post("/v1/chat/completions", STREAM))
        await reader.readuntil(b"\n\n")
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 2)
        await until(lambda: stage.is_settled)
        usage = stage.keeper.places[0].settled[0]
        assert usage is not None and usage.completion_tokens == 3


async def test_a_reader_that_stalls_holds_its_node_back_and_is_cut() -> None:
    sent = 0

    async def floods(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(EVENT * 1000))
            await writer.drain()
            sent += 1000 * len(EVENT)

    async with staged(floods, settings=ProxySettings(stall_s=0.6)) as stage:
        reader, writer = await stage.send(post("/v1/chat/completions", STREAM))
        await reader.readuntil(b"\n\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: not stage.front.connections)
        assert sent < 64 * 2**20
        assert stage.is_settled
        writer.transport.abort()


async def test_a_model_that_nobody_holds_is_loaded_and_then_asked() -> None:
    async with staged(always(answer(GOOD))) as stage:
        loads = []

        class Loading:
            async def load(self, model: str) -> None:
                loads.append(model)
                await asyncio.sleep(0.01)

        stage.front.loader = Loading()
        stage.chooser.decisions = [ColdModel("m-7b")]
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).body == GOOD
        assert loads == ["m-7b"]
        stage.chooser.decisions = [ColdModel("m-7b")] * 9
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 503
        stage.chooser.decisions = [NoRoute(ModelNotFound("m"))]
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 404
        assert stage.is_settled


async def test_a_thousand_mixed_requests_with_cancels_leave_every_count_at_nothing() -> None:
    dice = random.Random(6)

    async def mixed(asking: Asking, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        what = dice.random()
        await asyncio.sleep(dice.random() * 0.005)
        if what < 0.1:
            writer.transport.abort()
        elif what < 0.2:
            writer.write(answer(b'{"error":{"code":"overloaded"}}', status="503 Busy"))
        elif what < 0.6:
            writer.write(SSE_HEAD + chunk(EVENT * 5))
            await asyncio.sleep(dice.random() * 0.005)
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            writer.write(answer(GOOD))

    async def one(number: int) -> None:
        reader, writer = await stage.send(
            post("/v1/chat/completions", STREAM[:-1] + b',"user":"%d"}' % number)
        )
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * 0.006)
            writer.transport.abort()
            return
        await read_response(reader)
        writer.close()

    async with staged(mixed, mixed, mixed) as stage:
        for start in range(0, 1000, 100):
            stage.keeper.waits = bool(start % 200)
            await asyncio.gather(*(one(start + number) for number in range(100)))
        await until(lambda: stage.is_settled)
        assert stage.front.metrics.connections == len(stage.front.connections)


async def test_a_chosen_node_counts_while_it_is_connected_to() -> None:
    async with staged(hangs) as stage:
        spec = stage.fleet.nodes["n0"].spec
        stage.chooser.decisions = [ChosenNode(spec, "m")]
        _, writer = await stage.send(post("/v1/chat/completions", CHAT))
        await until(lambda: stage.fleet.in_flight["n0"] == 1)
        writer.close()
        await until(lambda: stage.fleet.in_flight["n0"] == 0)


async def test_a_front_that_nobody_called_for_an_hour_does_not_take_that_for_silence() -> None:
    async def thinks(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(answer(GOOD))

    async with staged(thinks) as stage:
        stage.front.now_s -= 3600
        assert (await stage.ask(post("/v1/chat/completions", CHAT))).status == 200


async def test_nothing_of_a_request_waits_for_the_garbage_collector() -> None:
    async with staged(always(answer(GOOD))) as stage:
        reader, writer = await stage.send(post("/v1/chat/completions", CHAT))
        await read_response(reader)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                writer.write(post("/v1/chat/completions", CHAT))
                await read_response(reader)
            left = [
                held for held in gc.get_objects(generation=0) if isinstance(held, NodeAttempt | ProxyExchange)
            ]
        finally:
            gc.enable()
        assert not left
        writer.close()


def keeps_then(second: Script) -> Script:
    """A node that answers a connection's first request well, and its second as it is told."""
    seen: set[asyncio.StreamWriter] = set()

    async def script(asking: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer in seen:
            await second(asking, reader, writer)
        else:
            seen.add(writer)
            writer.write(answer(GOOD))

    return script


async def test_a_kept_connection_that_had_ended_is_made_good_elsewhere_or_on_a_new_one() -> None:
    async with staged(keeps_then(dies()), always(answer(GOOD))) as stage:
        for _ in range(2):
            assert (await stage.ask(post("/v1/chat/completions", CHAT))).body == GOOD
        assert [len(node.asked) for node in stage.nodes.values()] == [2, 1]
        assert not stage.fleet.is_cooling("n0") and stage.front.quarantine.is_empty
    async with staged(keeps_then(dies())) as stage:
        for _ in range(2):
            assert (await stage.ask(post("/v1/chat/completions", CHAT))).body == GOOD
        assert len(stage.nodes["n0"].asked) == 3  # the one that was lost among them
        assert stage.is_settled


async def test_a_large_body_whose_head_has_left_is_passed_on_and_not_begun_again() -> None:
    async def pauses(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _, body = answer(b"x" * 900_000).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await asyncio.sleep(2.0)
        writer.write(body)

    async def stalls(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"x" * 900_000).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        await asyncio.sleep(2.0)
        writer.transport.abort()

    async with staged(pauses) as stage:
        assert (await stage.ask(post("/v1/embeddings", b'{"model":"m"}'))).body == b"x" * 900_000
    async with staged(stalls, always(answer(b"y" * 900_000))) as stage:
        reader, writer = await stage.send(post("/v1/embeddings", b'{"model":"m"}'))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_response(reader)
        writer.close()
        assert len(stage.nodes["n1"].asked) == 0
        await until(lambda: stage.is_settled)
