"""HTTP as bytes on a connection: for what a client library would tidy up, or would not let go wrong."""

import asyncio
import json
from dataclasses import dataclass


def request_bytes(path: str, body: object = None, key: str | None = None, *more: str) -> bytes:
    """A whole request: a GET, or a POST of these bytes or of this as JSON, with `more` lines in its head."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: localhost"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(data)}"]
    return "\r\n".join((*lines, *more, "", "")).encode() + data


@dataclass(slots=True)
class RawResponse:
    """A response as a client got it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_cut: bool = False

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)


async def read_response(reader: asyncio.StreamReader, *, has_body: bool = True) -> RawResponse:
    """Read one response, its chunks put together."""
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        line, *rest = head[:-4].split(b"\r\n")
        headers = [(name, value) for name, _, value in (entry.partition(b": ") for entry in rest)]
        status = int(line.split(b" ")[1])
        named = dict(headers)
        found = RawResponse(status, headers, b"")
        if status in (100, 204, 304) or not has_body:
            return found
        if b"content-length" in named:
            found.body = await reader.readexactly(int(named[b"content-length"]))
        elif named.get(b"transfer-encoding") == b"chunked":
            try:
                found.body = await _chunks(reader)
            except asyncio.IncompleteReadError:
                found.is_cut = True
        else:
            found.body = await reader.read()
        return found


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        data = await reader.readexactly(size + 2)
        if not size:
            return b"".join(parts)
        parts.append(data[:-2])
