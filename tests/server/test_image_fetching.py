"""Images that a request names by an address: off by default, by rules where it is on, and never from inside.

What must not be reached is played by listeners on loopback that count who comes.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ganglion.core.errors import InvalidValue
from ganglion.engines.echo.engine import SEEING_ID
from ganglion.server.images import outbound as outbound_module
from ganglion.server.images.fetch_rules import FetchRules, is_public
from ganglion.server.images.outbound import Outbound
from support.pictures import png, positions
from support.seeing_node import Seeing, seeing_echo

PICTURE = png(20, 20)
MIB = 2**20


@dataclass
class Canary:
    """A listener that counts who comes, and answers with a script."""

    answer: Callable[[str], bytes]
    port: int = 0
    seen: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append("somebody")
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            answer = self.answer(head.split()[1])
            if answer:
                writer.write(answer)
                await writer.drain()
            else:
                await reader.read()  # until whoever waits for an answer leaves
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def ok(body: bytes = PICTURE, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def moved(to: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()


@asynccontextmanager
async def listening(answer: Callable[[str], bytes] = lambda path: ok()) -> AsyncIterator[Canary]:
    canary = Canary(answer)
    server = await asyncio.start_server(canary.serve, "127.0.0.1", 0)
    canary.port = server.sockets[0].getsockname()[1]
    try:
        yield canary
    finally:
        server.close()


def table(**addresses: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver of these names, whose dots are written as underscores; others do not exist."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        try:
            return addresses[host.replace(".", "_")].split()
        except KeyError:
            raise OSError("no such name") from None

    return resolve


def open_to(canary: Canary, *hosts: str, **names: str) -> Outbound:
    """A client that may reach the canary as `pictures.test`: the one door of these tests into loopback."""
    rules = FetchRules((*(hosts or (f"pictures.test:{canary.port}",)),), may_use_http=True)
    resolve = table(**({"pictures_test": "127.0.0.1"} | names))
    return Outbound(rules, resolve, lambda address: address == "127.0.0.1" or is_public(address))


def url_of(canary: Canary, path: str = "/a.png") -> str:
    return f"http://pictures.test:{canary.port}{path}"


async def refused(client: Outbound, url: str) -> str:
    with pytest.raises(InvalidValue) as caught:
        await client.fetch(url, max_bytes=MIB)
    return caught.value.message


# What may not be reached

_INSIDE = (
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.9",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
)


def _spellings_of(address: str, port: int) -> list[str]:
    """The host of an address as resolvers, browsers and libraries have been known to take it."""
    number = int(ipaddress.IPv4Address(address))
    a, b, c, d = address.split(".")
    hex_v6 = f"{number >> 16:x}:{number & 0xFFFF:x}"
    wide = address.translate({ord(str(digit)): chr(0xFF10 + digit) for digit in range(10)})
    circled = address.translate({ord(str(digit)): chr(0x2460 + digit - 1) for digit in range(1, 10)})
    hosts = [
        address,
        f"{address}.",
        str(number),
        f"0x{number:08x}",
        f"0X{number:X}",
        f"{number:#o}".replace("o", ""),
        f"0{number:o}",
        f"{a}.{(int(b) << 16) + (int(c) << 8) + int(d)}",
        f"{a}.{b}.{(int(c) << 8) + int(d)}",
        f"0{int(a):o}.0{int(b):o}.0{int(c):o}.0{int(d):o}",
        f"0x{int(a):x}.0x{int(b):x}.0x{int(c):x}.0x{int(d):x}",
        f"0{int(a):o}.{b}.{c}.0x{int(d):x}",
        f"000{a}.{b}.{c}.{d}",
        f"[::ffff:{address}]",
        f"[::ffff:{hex_v6}]",
        f"[::{address}]",
        f"[64:ff9b::{address}]",
        f"[2002:{hex_v6}::]",
        f"[2001:0:{hex_v6}::1]",
        "[fe80::1%25lo]",
        wide,
        circled,
        address.replace(".", "\u3002"),
        address.replace(".", "\uff0e"),
        "".join(f"%{ord(sign):02x}" for sign in address),
        address.replace(".", "%2e"),
        f"user@{address}",
        f"user:word@{address}",
        f"pictures.test@{address}",
        f"pictures.test%00@{address}",
        f"pictures.test%2f@{address}",
        f" {address}",
        f"{address}\t",
        f"{address}\x00.pictures.test",
        f"{address}\r\nhost: pictures.test",
        f"{address}\\.pictures.test",
        f"\u200b{address}",
    ]
    urls = [f"http://{host}:{port}/a.png" for host in hosts]
    return [
        *urls,
        f"http://{address}:{port}#@pictures.test/",
        f"http://{address}:{port}\\@pictures.test/",
        f"http://pictures.test\\@{address}:{port}/",
        f"http:///{address}:{port}/",
        f"http:{address}:{port}/",
        f"http:\\\\{address}:{port}/",
        f"http://{address}:0{port}/",
        f"http://{address}:{port + 2**16}/",
        f"http://{address}:+{port}/",
    ]


_NAMES = (
    *("localhost", "LOCALHOST", "LocalHost", "localhost.", "localhost.localdomain", "ip6-localhost"),
    *("ip6-loopback", "broadcasthost", "metadata.google.internal", "instance-data", "kubernetes.default.svc"),
    *(
        "l\u2482calhost",
        "loc\u0430lhost",
        "127.0.0.1.nip.example",
        "inside.pictures.test",
        "\u212aubernetes.test",
        "picture\u017f.test",
        "a..b",
        "-a.test",
        "_a.test",
    ),
)


async def test_no_spelling_of_a_forbidden_host_reaches_anybody() -> None:
    async def inside(host: str, port: int) -> Sequence[str]:
        return ("127.0.0.1",)  # whatever still counts as a name means this machine

    async with listening() as canary:
        client = Outbound(FetchRules(("*", f"*:{canary.port}", "pictures.test"), may_use_http=True), inside)
        urls = [url for address in _INSIDE for url in _spellings_of(address, canary.port)]
        urls += [f"http://{name}:{canary.port}/a.png" for name in _NAMES]
        assert len(set(urls)) >= 300
        for url in urls:
            await refused(client, url)
        assert canary.seen == []


FORBIDDEN = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1"),
    *("127.255.255.254", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1"),
    *("192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1", "198.19.255.255"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1"),
    *("100::1", "2001::1", "2001:0:7f00:1::", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::"),
    *(
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00::1",
        "fd12:3456::1",
        "fe80::1",
        "fe80::1%lo",
        "fec0::1",
        "ff02::1",
    ),
    *("", "nonsense", "127.1", "2130706433"),
)


@pytest.mark.parametrize("address", FORBIDDEN)
async def test_a_listed_name_that_means_an_address_inside_is_not_called(address: str) -> None:
    assert not is_public(address)
    async with listening() as canary:
        for means in (address, f"8.8.8.8 {address}"):
            client = Outbound(
                FetchRules((f"pictures.test:{canary.port}",), may_use_http=True), table(pictures_test=means)
            )
            await refused(client, url_of(canary))
        assert canary.seen == []


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "2606:4700::1", "2a00::1"]
)
def test_the_internet_at_large_is_public(address: str) -> None:
    assert is_public(address)


async def test_a_name_is_asked_for_once_and_the_connection_goes_to_what_it_meant_then() -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ("127.0.0.1",) if len(asked) == 1 else ("10.0.0.1",)

    async with listening() as canary:
        client = Outbound(
            FetchRules((f"pictures.test:{canary.port}",), may_use_http=True),
            rebinding,
            lambda address: address == "127.0.0.1",
        )
        assert await client.fetch(url_of(canary), max_bytes=MIB) == PICTURE
        assert asked == ["pictures.test"]
        assert f"host: pictures.test:{canary.port}\r\n" in canary.heads[0]


@pytest.mark.parametrize(
    "url",
    [
        "https://other.test/a.png",
        "https://pictures.test.evil.example/a.png",
        "https://evilpictures.test/a.png",
        "https://pictures.test:8443/a.png",
        "https://sub.pictures.test/a.png",
        "https://wild.test/a.png",
        "http://pictures.test/a.png",
    ],
)
async def test_only_listed_hosts_at_their_ports_over_https_are_asked(url: str) -> None:
    async def nobody(host: str, port: int) -> Sequence[str]:
        raise AssertionError(f"{host} was looked for")

    await refused(Outbound(FetchRules(("pictures.test", "*.wild.test")), nobody), url)


@pytest.mark.parametrize(
    "url", ["https://pictures.test/a.png", "HTTPS://PICTURES.test:443?q=1", "https://a.b.wild.test"]
)
def test_listed_hosts_are_allowed_in_any_case(url: str) -> None:
    assert FetchRules(("pictures.test", "*.wild.test")).location_of(url).port == 443


# Redirects, sizes and times


async def test_three_redirects_are_followed_and_no_fourth() -> None:
    def answer(path: str) -> bytes:
        left = int(path[1:])
        return moved(f"/{left - 1}") if left else ok()

    async with listening(answer) as canary:
        client = open_to(canary)
        assert await client.fetch(url_of(canary, "/3"), max_bytes=MIB) == PICTURE
        assert "redirects" in await refused(client, url_of(canary, "/4"))


@pytest.mark.parametrize(
    "target",
    [
        "http://inside.test:{port}/",
        "http://127.0.0.1:{port}/inside",
        "http://localhost:{port}/inside",
        "//inside.test:{port}/",
        "http://other.test:{port}/",
        "file:///etc/passwd",
        "gopher://pictures.test:{port}/",
        "http://[::1]:{port}/",
        "http://user@pictures.test:{port}/",
        "",
        "http://",
        "\u00e9",
    ],
)
async def test_a_redirect_is_judged_like_any_address(target: str) -> None:
    async with listening(lambda path: ok()) as inside, listening() as canary:
        canary.answer = lambda path: moved(target.format(port=inside.port))
        hosts = (f"pictures.test:{canary.port}", f"inside.test:{inside.port}")
        client = open_to(canary, *hosts, inside_test="10.0.0.1", localhost="127.0.0.1")
        await refused(client, url_of(canary))
        assert inside.seen == []


async def test_what_is_too_large_is_not_read_to_its_end() -> None:
    bodies = {
        "/announced": f"HTTP/1.1 200 OK\r\ncontent-length: {MIB + 1}\r\n\r\n".encode(),
        "/sent": ok(bytes(MIB + 1)),
        "/chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        + (b"10000\r\n" + bytes(2**16) + b"\r\n") * 20,
        "/endless": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2 * MIB),
        "/compressed": ok(PICTURE, "content-encoding: gzip"),
        "/head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000 + b"\r\n",
        "/largest": ok(bytes(MIB)),
    }
    async with listening(lambda path: bodies[path]) as canary:
        client = open_to(canary)
        for path in bodies:
            if path != "/largest":
                await refused(client, url_of(canary, path))
        assert len(await client.fetch(url_of(canary, "/largest"), max_bytes=MIB)) == MIB


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort",
        b"SSH-2.0-OpenSSH\r\n",
        b"220 mail\r\n\r\n",
        b"\x00\x01\x02",
    ],
)
async def test_an_answer_that_is_none_is_refused(answer: bytes) -> None:
    async with listening(lambda path: answer) as canary:
        message = await refused(open_to(canary), url_of(canary))
    assert "OpenSSH" not in message


async def test_a_server_that_says_nothing_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_module, "TOTAL_S", 0.1)
    async with listening(lambda path: b"") as canary, asyncio.timeout(5):
        assert "did not arrive" in await refused(open_to(canary), url_of(canary))


# On the wires


@asynccontextmanager
async def fetching(canary: Canary, **fields: object) -> AsyncIterator[Seeing]:
    async with seeing_echo(outbound=open_to(canary), **fields) as seeing:
        yield seeing


def bodies(url: str, model: str = SEEING_ID) -> dict[str, dict[str, Any]]:
    def said(*parts: object) -> list[object]:
        return [{"role": "user", "content": list(parts)}]

    chat = {"model": model, "messages": said({"type": "image_url", "image_url": {"url": url}})}
    message = said({"type": "image", "source": {"type": "url", "url": url}})
    return {
        "/v1/chat/completions": chat,
        "/v1/chat/completions/input_tokens": chat,
        "/v1/messages": {"model": model, "max_tokens": 99, "messages": message},
        "/v1/messages/count_tokens": {"model": model, "messages": message},
        "/v1/responses": {"model": model, "input": said({"type": "input_image", "image_url": url})},
    }


async def test_every_wire_fetches_where_the_operator_allows_it() -> None:
    async with listening() as canary, fetching(canary) as seeing:
        for path, body in bodies(url_of(canary)).items():
            answer = await seeing.node.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            if "count" not in path and "input_tokens" not in path:
                assert f"[image 1: {positions(PICTURE)} positions]" in answer.text
        assert len(canary.seen) == len(bodies(""))


async def test_nothing_is_fetched_unless_the_operator_says_so() -> None:
    async with listening() as canary, seeing_echo() as seeing:
        for path, body in bodies(url_of(canary)).items():
            answer = await seeing.node.http.post(path, json=body)
            assert answer.status_code == 400
            assert "server.images.fetch_hosts" in answer.text
        assert canary.seen == []


async def test_nothing_is_fetched_for_a_model_that_does_not_see(serving) -> None:
    async with listening() as canary, serving(outbound=open_to(canary)) as served:
        for path, body in bodies(url_of(canary), "echo").items():
            answer = await served.http.post(path, json=body)
            assert (answer.status_code, "reads text only" in answer.text) == (400, True), path
        answer = await served.http.post(
            "/v1/chat/completions", json=bodies(url_of(canary), "nobody")["/v1/chat/completions"]
        )
        assert answer.status_code >= 400
        assert canary.seen == []


async def test_nothing_is_fetched_for_somebody_without_a_key() -> None:
    async with listening() as canary, fetching(canary, api_keys=("right",)) as seeing:
        for path, body in bodies(url_of(canary)).items():
            answer = await seeing.node.http.post(path, json=body, headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 401
        assert canary.seen == []


async def test_the_choices_of_a_call_fetch_once() -> None:
    async with listening() as canary, fetching(canary) as seeing:
        body = bodies(url_of(canary))["/v1/chat/completions"]
        answer = (await seeing.node.http.post("/v1/chat/completions", json=body | {"n": 8})).json()
        assert len({choice["message"]["content"] for choice in answer["choices"]}) == 1
        assert len(canary.seen) == 1


async def test_what_was_fetched_must_be_an_image() -> None:
    async with listening(lambda path: ok(b"<html>inside</html>")) as canary, fetching(canary) as seeing:
        body = bodies(url_of(canary))["/v1/chat/completions"]
        answer = await seeing.node.http.post("/v1/chat/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            400,
            "invalid_value",
            "messages[0].content[0]",
        )
        assert "inside" not in answer.text


async def test_more_addresses_than_are_fetched_for_one_request_are_refused() -> None:
    async with listening() as canary, fetching(canary) as seeing:
        parts = [{"type": "image_url", "image_url": {"url": url_of(canary, f"/{n}")}} for n in range(17)]
        body = {"model": SEEING_ID, "messages": [{"role": "user", "content": parts}]}
        answer = await seeing.node.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert canary.seen == []
