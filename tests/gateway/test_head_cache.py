"""Heads that a client says again: taken for what the parser would take them for, and for nothing else."""

import asyncio

import httptools
from hypothesis import example, given
from hypothesis import strategies as st
from proxy_stage import CHAT, Asking, Keeper, answer, post, staged

from ganglion.core.errors import GanglionError, NotAllowed
from ganglion.gateway.access.admission import Identity
from ganglion.gateway.proxy.client_request import HeadCache, build_head, cache_head
from ganglion.gateway.proxy.listener import ProxySettings
from ganglion.gateway.proxy.routes import parse_target
from support.raw_http import read_response

MOST = 1000


class Read:
    """What the parser makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.whole = 0
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.whole = -1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole += 1
        self.is_kept = self.parser.should_keep_alive()

    def learnt(self, data: bytes) -> HeadCache | None:
        if self.whole != 1:
            return None
        target = parse_target(self.url)
        return cache_head(
            data, build_head(self.parser.get_method(), target, self.headers, is_kept=self.is_kept)
        )


LINES = st.lists(
    st.sampled_from(
        (
            *("host: here\r\n", "Host: there\r\n", "authorization: Bearer k\r\n", "x-api-key: j\r\n"),
            *("content-length: 2\r\n", "Content-Length:  02\r\n", "content-length: 12\r\n"),
            *("CONTENT-LENGTH: 2 \r\n", "content-length:\r\n", "content-length: +2\r\n"),
            *("x-content-length: 2\r\n", "transfer-encoding: chunked\r\n", "expect: 100-continue\r\n"),
            *("connection: close\r\n", "connection: keep-alive\r\n", "upgrade: h2c\r\n", "x: a\r\n b\r\n"),
            *("x: a\n", "x: content-length: 2\r\n", "x:\r\n"),
        )
    ),
    max_size=5,
)
REQUESTS = st.builds(
    lambda blank, line, lines, end, body: (blank + line + "".join(lines) + end + body).encode(),
    st.sampled_from(("", "\r\n")),
    st.sampled_from(("POST /v1/a HTTP/1.1\r\n", "POST /v1/a HTTP/1.0\r\n", "GET / HTTP/1.1\r\n")),
    LINES,
    st.sampled_from(("\r\n", "\n")),
    st.sampled_from(("{}", "[1, 2, 3, 45]", "", "\r\n\r\n{}", "{}POST / HTTP/1.1\r\n\r\n")),
)


@st.composite
def turns(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A request, and another one that is like it but for a few bytes."""
    first = draw(REQUESTS)
    if draw(st.booleans()):
        return first, draw(REQUESTS)
    head, _, body = first.partition(b"\r\n\r\n")
    body = draw(st.sampled_from((body, body + body, b"x" * 100)))
    length = b"content-length: %d" % len(body)
    second = (
        head.replace(b"content-length: 2", draw(st.sampled_from((length, length + b"x"))))
        + b"\r\n\r\n"
        + body
    )
    at = draw(st.integers(0, len(second)))
    return first, second[:at] + draw(st.sampled_from((b"", b"0", b"\r", b"\r\n", b" "))) + second[at:]


PLAIN = b"POST /v1/a HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\nx: y\r\n\r\n%b"


@given(turns())
@example((PLAIN % (2, b"{}"), PLAIN % (13, b"[1, 2, 3, 45]")))
def test_what_is_recognised_is_what_the_parser_reads(pair: tuple[bytes, bytes]) -> None:
    first, second = pair
    known = Read(first).learnt(first)
    body = None if known is None else known.body_in(second, MOST)
    if known is None or body is None:
        return
    read = Read(second)
    assert (read.whole, read.body, read.is_kept) == (1, body, True)
    assert read.parser.get_method() == known.head.method
    assert parse_target(read.url) == known.head.target
    lengths = {b"content-length"}
    assert [each for each in read.headers if each[0] not in lengths] == [
        each for each in known.head.headers if each[0] not in lengths
    ]


def test_a_head_is_recognised_with_bodies_of_other_lengths_within_the_bound() -> None:
    known = Read(PLAIN % (2, b"{}")).learnt(PLAIN % (2, b"{}"))
    assert known is not None
    for size in (0, 1, 9, 10, MOST):
        assert known.body_in(PLAIN % (size, b"x" * size), MOST) == b"x" * size
    assert known.body_in(PLAIN % (MOST + 1, b"x" * (MOST + 1)), MOST) is None
    assert known.body_in(PLAIN % (3, b"{}"), MOST) is None
    assert known.body_in(PLAIN % (2, b"{}P"), MOST) is None
    assert known.body_in((PLAIN % (2, b"{}"))[:-4], MOST) is None
    assert known.body_in((PLAIN % (2, b"{}")).replace(b": 2", b": -2"), MOST) is None


async def test_every_request_of_a_connection_is_judged_though_its_head_was_read_before() -> None:
    asked: list[Asking] = []

    async def script(asking: Asking, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asking)
        writer.write(answer(b'{"n":%d}' % len(asking.body)))

    keeper = Keeper({b"a": Identity("acme", "k1"), b"b": Identity("other", "k2")})
    async with staged(script, keeper=keeper) as stage:
        reader, writer = await stage.send(post("/v1/chat/completions", CHAT, "authorization: Bearer a"))
        assert (await read_response(reader)).status == 200
        for number in range(1, 4):
            body = CHAT + b" " * number
            writer.write(post("/v1/chat/completions", body, "authorization: Bearer a"))
            heard = await read_response(reader)
            assert (heard.status, heard.body) == (200, b'{"n":%d}' % len(body))
        writer.write(post("/v1/chat/completions", CHAT, "authorization: Bearer b"))
        assert (await read_response(reader)).status == 200
        assert [asking.header(b"x-ganglion-tenant") for asking in asked] == [b"acme"] * 4 + [b"other"]
        assert len({asking.header(b"x-request-id") for asking in asked}) == 5
        del keeper.keys[b"b"]
        writer.write(post("/v1/chat/completions", CHAT, "authorization: Bearer b"))
        assert (await read_response(reader)).status == 401
        writer.write(post("/v1/chat/completions", b"{", "authorization: Bearer a"))
        assert (await read_response(reader)).status == 400
        writer.write(post("/v1/chat/completions", CHAT, "authorization: Bearer a")[:-5])
        await asyncio.sleep(0.05)
        assert len(asked) == 5, "the last one is not whole"
        writer.write(CHAT[-5:])
        assert (await read_response(reader)).status == 200


async def test_a_host_that_is_refused_is_refused_each_time() -> None:
    def guard(host: bytes | None, *_: object) -> GanglionError | None:
        return None if host == b"there" else NotAllowed("Not from here.")

    async with staged(settings=ProxySettings(guard=guard)) as stage:
        reader, writer = await stage.send(b"")
        for _ in range(3):
            writer.write(post("/v1/chat/completions", CHAT))
            assert (await read_response(reader)).status == 403
        assert not stage.keeper.places
