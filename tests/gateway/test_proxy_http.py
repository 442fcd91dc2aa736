"""HTTP as the front must read and write it, where servers like to differ."""

import asyncio
import json

import pytest
from proxy_stage import CHAT, SSE_HEAD, STREAM, Asking, Script, always, answer, chunk, post, staged

from ganglion.core.events import Usage
from ganglion.wire.chat.proxy import PROXY as CHAT_WIRE
from ganglion.wire.messages.proxy import PROXY as MESSAGES_WIRE
from ganglion.wire.proxy_dialect import ProxyDialect
from ganglion.wire.proxy_usage import estimated_answer
from support.raw_http import read_response
from support.waiting import until

GOOD = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'
PATH = "/v1/chat/completions"


def raw(*lines: str, body: bytes = b"") -> bytes:
    return "".join(f"{line}\r\n" for line in (f"POST {PATH} HTTP/1.1", *lines, "")).encode() + body


async def test_a_request_without_a_host_is_wrong_in_http_1_1_and_right_in_1_0() -> None:
    async with staged(always(answer(GOOD))) as stage:
        length = f"content-length: {len(CHAT)}"
        heard = await stage.ask(raw(length, body=CHAT))
        assert heard.status == 400 and "no host" in json.loads(heard.body)["error"]["message"]
        old = raw(length, body=CHAT).replace(b"HTTP/1.1", b"HTTP/1.0")
        assert (await stage.ask(old)).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        ("transfer-encoding: gzip, chunked",),
        ("transfer-encoding: gzip", "transfer-encoding: chunked"),
        ("Transfer-Encoding: Chunked, chunked",),
        ("transfer-encoding: identity, chunked",),
    ],
)
async def test_a_body_in_a_form_that_nobody_undoes_is_refused(lines: tuple[str, ...]) -> None:
    async with staged(always(answer(GOOD))) as stage:
        heard = await stage.ask(raw("host: here", *lines, body=chunk(CHAT) + b"0\r\n\r\n"))
        assert heard.status in (400, 501) and not stage.nodes["n0"].asked
        plain = raw("host: here", "transfer-encoding: Chunked", body=chunk(CHAT) + b"0\r\n\r\n")
        assert (await stage.ask(plain)).status == 200


async def test_a_header_that_any_connection_line_names_goes_no_further() -> None:
    async with staged(always(answer(GOOD))) as stage:
        more = ("connection: x-one", "x-one: 1", "x-two: 2", "connection: keep-alive, X-Two", "x-three: 3")
        assert (await stage.ask(post(PATH, CHAT, *more))).status == 200
        names = {name for name, _ in stage.nodes["n0"].asked[0].headers}
        assert b"x-three" in names and not names & {b"x-one", b"x-two", b"connection"}


async def test_whoever_waits_for_100_behind_another_request_hears_it_in_its_turn() -> None:
    is_time = asyncio.Event()

    async def slow(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_time.wait()
        writer.write(answer(GOOD))

    async with staged(slow) as stage:
        head = raw("host: here", "expect: 100-continue", f"content-length: {len(CHAT)}")
        reader, writer = await stage.send(post(PATH, CHAT) + head)
        await until(lambda: len(stage.nodes["n0"].asked) == 1)
        is_time.set()
        assert (await read_response(reader)).status == 200
        assert (await read_response(reader)).status == 100
        writer.write(CHAT)
        assert (await read_response(reader)).status == 200


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_a_redirect_hands_out_no_address(status: str) -> None:
    inside = "http://10.1.2.3:9000/v1/chat/completions"
    page = f'<a href="{inside}">moved</a>'.encode()
    moved = answer(page, status=status, kind="text/html", more=f"location: {inside}\r\n")
    async with staged(always(moved), is_foreign=True) as stage:
        for body in (CHAT, STREAM):
            heard = await stage.ask(post(PATH, body))
            assert (heard.status, json.loads(heard.body)["error"]["code"]) == (502, "upstream_refused")
            assert b"10.1.2.3" not in heard.body and heard.header(b"location") is None


async def test_after_a_redirect_another_node_is_asked() -> None:
    moved = answer(b"", status="302 Found", more="location: http://10.1.2.3/\r\n")
    async with staged(always(moved), always(answer(GOOD)), is_foreign=True) as stage:
        assert (await stage.ask(post(PATH, CHAT))).status == 200


@pytest.mark.parametrize("line_end", [b"\r", b"\r\n", b"\n"])
async def test_a_strangers_events_may_end_in_any_way_that_events_may(line_end: bytes) -> None:
    events = (
        b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":6}}\n\ndata: [DONE]\n\n'
    ).replace(b"\n", line_end)

    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for at in range(0, len(events), 7):
            writer.write(chunk(events[at : at + 7]))
        writer.write(b"0\r\n\r\n")

    async with staged(script, is_foreign=True) as stage:
        heard = await stage.ask(post(PATH, STREAM))
        assert heard.status == 200 and b"one" in heard.body and b"[DONE]" in heard.body
        assert b"usage" not in heard.body
        assert stage.keeper.places[0].settled == [Usage(5, 6)]


def saying(*events: bytes) -> Script:
    """A stream that says this and then nothing more, for ever."""

    async def script(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, events)))
        await asyncio.sleep(60)

    return script


ENVELOPES: dict[str, tuple[bytes, ...]] = {
    "/v1/messages": (
        b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
    ),
    "/v1/responses": (
        b'event: response.created\ndata: {"type":"response.created"}\n\n',
        b'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n',
        b": keep-alive\n\n",
        b'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n',
    ),
    PATH: (
        b": keep-alive\n\n",
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b": keep-alive\n\n",
    ),
}
SAID = {
    "/v1/messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0}\n\n',
    "/v1/responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n',
    PATH: b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n',
}


@pytest.mark.parametrize("path", ENVELOPES)
@pytest.mark.parametrize("said", [0, 3])
async def test_who_leaves_pays_for_what_was_said_and_not_for_envelopes(path: str, said: int) -> None:
    script = saying(*ENVELOPES[path], *[SAID[path]] * said)
    body = STREAM if path != "/v1/responses" else b'{"model":"m","stream":true,"input":"hello"}'
    async with staged(script, desk=script) as stage:
        reader, writer = await stage.send(post(path, body))
        await reader.readuntil(b"\r\n\r\n")
        heard = b""
        while heard.count(b"\n\n") < len(ENVELOPES[path]) + said:
            heard += await reader.read(2**16)
        writer.transport.abort()
        await until(lambda: stage.is_settled)
        assert stage.keeper.places[0].settled == [Usage(len(body) // 4, said)]
        stage.front.log.flush()
        assert "status=499" in stage.log[-1]
        assert not len(stage.front.open_admissions)


async def test_a_whole_strangers_answer_without_counts_is_estimated_by_its_text() -> None:
    said = {"role": "assistant", "content": "a" * 40, "tool_calls": [{"function": {"arguments": "b" * 8}}]}
    whole = json.dumps({"choices": [{"message": said}, {"message": {"content": "c" * 4}}]}).encode()
    async with staged(always(answer(whole)), is_foreign=True) as stage:
        assert (await stage.ask(post(PATH, CHAT))).status == 200
        assert stage.keeper.places[0].settled == [Usage(len(CHAT) // 4, 13)]
    async with staged(always(answer(whole))) as stage:  # our own nodes always tell
        assert (await stage.ask(post(PATH, CHAT))).status == 200
        assert stage.keeper.places[0].settled == [Usage(0, 0)]


@pytest.mark.parametrize(
    ("dialect", "body", "tokens"),
    [
        (CHAT_WIRE, b'{"choices":[{"text":"abcdefgh"}]}', 2),
        (
            MESSAGES_WIRE,
            b'{"content":[{"type":"text","text":"abcd"},{"thinking":"efgh"},{"input":{"a":1}}]}',
            4,
        ),
        (CHAT_WIRE, b"not json at all!", 4),
        (CHAT_WIRE, b'{"choices":[]}', 0),
    ],
)
def test_what_was_said_is_found_wherever_it_stands(dialect: ProxyDialect, body: bytes, tokens: int) -> None:
    assert estimated_answer(body, dialect.answer_texts) == tokens
