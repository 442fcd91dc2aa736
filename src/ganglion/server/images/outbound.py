"""The one client with which a node asks the internet for what a request names.

Laws: a name is resolved once, all that it resolves to must be public, and the connection goes to that address
and no other, whatever the name means a moment later. Each redirect is a new address under the same rules.
What is read is bounded in bytes and in time as it comes. An error says nothing of what was found inside.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urljoin

import httptools

from ganglion.core.errors import InvalidValue
from ganglion.server.images.fetch_rules import FetchRules, ImageLocation, is_public
from ganglion.server.settings import ImageFetchSettings

TOTAL_S: Final = 10.0
"""For one file: name, connection, redirects and bytes."""
_REDIRECTS: Final = 3
_REDIRECT_STATUSES: Final = (301, 302, 303, 307, 308)
_MAX_HEAD_BYTES: Final = 32 * 2**10
_READ_BYTES: Final = 64 * 2**10

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to its addresses."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as this machine resolves it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


@dataclass(frozen=True, slots=True)
class Outbound:
    """Fetches files from addresses that the rules allow; `resolve` and `may_connect` are for tests."""

    rules: FetchRules
    resolve: Resolve = resolve_host
    may_connect: Callable[[str], bool] = is_public

    async def fetch(self, url: str, *, max_bytes: int) -> bytes:
        """The bytes at an address; raises InvalidValue, which says why there are none."""
        try:
            async with asyncio.timeout(TOTAL_S):
                return await self._follow(url, max_bytes)
        except TimeoutError:
            raise InvalidValue(f"It did not arrive within {TOTAL_S:g} s.") from None
        except (OSError, ssl.SSLError, httptools.HttpParserError, UnicodeError, asyncio.IncompleteReadError):
            raise InvalidValue("Its server could not be reached, or did not speak HTTP.") from None

    async def _follow(self, url: str, max_bytes: int) -> bytes:
        for _ in range(_REDIRECTS + 1):
            location = self.rules.location_of(url)
            answer = await self._get(location, max_bytes)
            if answer.status not in _REDIRECT_STATUSES:
                if answer.status != 200:
                    raise InvalidValue(f"Its server answered {answer.status}.")
                return bytes(answer.body)
            target = answer.header(b"location").decode("ascii")
            url = urljoin(f"{location.scheme}://{location.authority}{location.target}", target)
        raise InvalidValue(f"It redirects more than {_REDIRECTS} times.")

    async def _get(self, location: ImageLocation, max_bytes: int) -> "_Answer":
        addresses = await self.resolve(location.host, location.port)
        if not addresses or not all(map(self.may_connect, addresses)):
            raise InvalidValue("Its host is not one that this server fetches images from.")
        reader, writer = await asyncio.open_connection(
            addresses[0],
            location.port,
            ssl=_tls() if location.is_tls else None,
            server_hostname=location.host if location.is_tls else None,
        )
        try:
            writer.write(
                f"GET {location.target} HTTP/1.1\r\nhost: {location.authority}\r\nuser-agent: ganglion\r\n"
                "accept: image/*\r\naccept-encoding: identity\r\nconnection: close\r\n\r\n".encode("ascii")
            )
            await writer.drain()
            return await _read(reader, max_bytes)
        finally:
            # Not awaited: a server that does not say goodbye in TLS would be waited for.
            with suppress(OSError, RuntimeError):
                writer.transport.abort()


def outbound_of(settings: ImageFetchSettings) -> Outbound:
    """The client that the settings ask for."""
    return Outbound(FetchRules(settings.fetch_hosts, settings.may_fetch_http))


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> "_Answer":
    answer = _Answer(max_bytes)
    while not answer.is_whole:
        data = await reader.read(_READ_BYTES)
        if not data:
            # Without a length the end of the connection is the end of the file; with one it is too early.
            if answer.status and not answer.has_length:
                return answer
            raise InvalidValue("Its server broke off.")
        answer.feed(data)
    return answer


class _Answer:
    """An answer as far as it has come; the methods named `on_...` are called by the parser."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._refusal: str | None = None
        self.status = 0
        self.body = bytearray()
        self.is_whole = False

    def feed(self, data: bytes) -> None:
        """Read on; raises InvalidValue for what is too large."""
        self._parser.feed_data(data)
        if not self.status:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                raise InvalidValue("Its server answered with too many headers.")
        if self._refusal is not None:
            raise InvalidValue(self._refusal)

    def header(self, name: bytes) -> bytes:
        """The last header of that name."""
        return self._headers.get(name, b"")

    @property
    def has_length(self) -> bool:
        """Whether it says where it ends."""
        return b"content-length" in self._headers or b"transfer-encoding" in self._headers

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        self.status = status
        # Nobody reads what an error or a redirect says besides.
        self.is_whole = status != 200
        length = self.header(b"content-length")
        if length.isdigit() and int(length[:20]) > self._max_bytes:
            self._refuse_size()
        elif self.header(b"content-encoding").lower() not in (b"", b"identity"):
            self._refusal = "Its server compressed it, unasked."

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > self._max_bytes:
            self._refuse_size()
        else:
            self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = self.is_whole or self.status != 0

    def _refuse_size(self) -> None:
        self._refusal = f"It is larger than {self._max_bytes} bytes."
