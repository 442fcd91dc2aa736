"""Streams of foreign servers that are silent for long: their clients are told that they are waited for."""

import asyncio
import json
from dataclasses import replace

import pytest
from byte_server import Line, answer, byte_server
from gateways import gateway
from proxy_stage import CHAT, SSE_HEAD, STREAM, Asking, Script, Stage, chunk, post, staged
from proxy_stage import answer as node_answer

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.proxy import listener
from ganglion.gateway.proxy.listener import ProxySettings
from ganglion.wire.dialects import USUAL_WIRES
from support.raw_http import read_response
from support.waiting import until

QUICK = ProxySettings(keep_alive_event_s=0.1)
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
COMPLETION = b'{"model":"m","stream":true,"prompt":"hello"}'
MESSAGE = b'{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hello"}]}'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


@pytest.fixture(autouse=True)
def _quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "TICK_S", 0.05)


class Quiet:
    """A server that says `first`, is silent until it is let go, and then says `last`."""

    def __init__(self, first: bytes, last: bytes) -> None:
        self.first, self.last = first, last
        self.go = asyncio.Event()

    async def script(self, _: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.first)
        await self.go.wait()
        if not self.last:
            writer.transport.abort()
        writer.write(self.last)


async def heard_signs(stage: Stage, data: bytes, quiet: Quiet, sign: bytes) -> tuple[bytes, bytes]:
    """The head of a stream, and its body, once two signs of life have come."""
    reader, _ = await stage.send(data)
    raw = b""
    async with asyncio.timeout(10):
        while raw.count(sign) < 2:
            raw += await reader.read(65536)
        quiet.go.set()
        whole = asyncio.StreamReader()
        whole.feed_data(raw)
        while not raw.endswith(b"0\r\n\r\n"):
            more = await reader.read(65536)
            assert more, raw
            raw += more
            whole.feed_data(more)
    heard = await read_response(whole)
    assert heard.status == 200
    return heard.header(b"content-type") or b"", heard.body


@pytest.mark.parametrize(
    ("path", "body", "event", "last", "sign"),
    [
        ("/v1/chat/completions", STREAM, EVENT, DONE, COMMENT),
        ("/v1/completions", COMPLETION, EVENT, DONE, COMMENT),
        ("/v1/messages", MESSAGE, b"event: x\ndata: {}\n\n", STOP, PING),
    ],
)
@pytest.mark.parametrize("first", ["nothing", "a head", "an event"])
async def test_a_silent_stream_tells_that_it_is_waited_for(
    path: str, body: bytes, event: bytes, last: bytes, sign: bytes, first: str
) -> None:
    opening = {"nothing": b"", "a head": SSE_HEAD, "an event": SSE_HEAD + chunk(event)}[first]
    rest = (b"" if opening else SSE_HEAD) + (b"" if first == "an event" else chunk(event))
    quiet = Quiet(opening, rest + chunk(last) + b"0\r\n\r\n")
    async with staged(quiet.script, is_foreign=True, settings=QUICK) as stage:
        kind, heard = await heard_signs(stage, post(path, body), quiet, sign)
        assert kind.startswith(b"text/event-stream")
        assert heard.replace(sign, b"") == event + last
        await until(lambda: stage.is_settled)
        usage = stage.keeper.places[0].settled[0]
        assert usage is not None and usage.completion_tokens <= 2  # signs are no tokens


async def test_a_server_that_is_lost_before_its_first_event_is_made_good_after_a_sign_of_life() -> None:
    quiet = Quiet(SSE_HEAD, b"")
    good = Quiet(b"", SSE_HEAD + chunk(EVENT + DONE) + b"0\r\n\r\n")
    good.go.set()
    async with staged(quiet.script, good.script, is_foreign=True, settings=QUICK) as stage:
        _, heard = await heard_signs(stage, post("/v1/chat/completions", STREAM), quiet, COMMENT)
        assert heard.replace(COMMENT, b"") == EVENT + DONE
        assert [len(node.asked) for node in stage.nodes.values()] == [1, 1]


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (node_answer(b'{"error":{"message":"no","code":"invalid_value"}}', status="400 No"), "invalid_value"),
        (node_answer(b'{"error":{"message":"no"}}', status="503 No"), "overloaded"),
        (node_answer(b'{"choices":[]}'), "upstream_unavailable"),
        (node_answer(b"x" * 300_000), "upstream_unavailable"),
        (b"", "upstream_unavailable"),
    ],
    ids=["400", "503", "whole", "large", "lost"],
)
async def test_what_fails_after_a_sign_of_life_is_an_event(last: bytes, code: str) -> None:
    quiet = Quiet(b"", last)
    async with staged(quiet.script, is_foreign=True, settings=QUICK) as stage:
        _, heard = await heard_signs(stage, post("/v1/chat/completions", STREAM), quiet, COMMENT)
        event = heard.replace(COMMENT, b"")
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == code
        await until(lambda: stage.is_settled)
        assert stage.keeper.places[0].settled == [None]


async def test_our_own_nodes_and_whole_answers_get_no_sign() -> None:
    async def slow(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.write(node_answer(b'{"ok":true}'))

    settings = replace(QUICK, keep_alive_event_s=0.1)
    script: Script = slow
    for body, is_foreign in ((CHAT, True), (STREAM, False)):
        async with staged(script, is_foreign=is_foreign, settings=settings) as stage:
            assert (await stage.ask(post("/v1/chat/completions", body))).body == b'{"ok":true}'


async def test_a_gateway_says_so_after_as_much_silence_as_its_other_wires() -> None:
    async def silent(line: Line) -> None:
        while (await line.asked()).startswith("GET"):
            await line.say(answer(b'{"object":"list","data":[{"id":"m"}]}'))
        await line.until_cut()

    async with byte_server(silent) as server:
        node = NodeSpec("a", server.url, "openai", wires=USUAL_WIRES)
        async with gateway([node], keep_alive_s=0.3) as running:
            body = json.loads(STREAM)
            async with running.http.stream("POST", "/v1/chat/completions", json=body) as stream:
                async for line in stream.aiter_lines():
                    assert line == ": keep-alive"
                    break
