"""A program that makes hostile calls: `python hostile_grpc.py ADDRESS KEY` prints how they ended.

In a process of its own, so that what it takes is not counted with the server.
"""

import asyncio
import sys
from collections import Counter

import grpc

MEBIBYTE = 2**20
EMPTY_STEERS = b"\x1a\x00"
EMPTY_OPTIONS = b"\x0a\x00"
EMPTY_RANGES = b"\x32\x00"
UNPACKED_TOKENS = b"\x10\x01"
GROUPS = b"\x7b\x7c"


def messages() -> list[tuple[str, bytes]]:
    """A thousand of them: much too large, as large as may be received, and as large as a method takes."""
    much = [("OpenSession", EMPTY_STEERS * (30 * MEBIBYTE))] * 10
    large = [
        *[("OpenSession", EMPTY_STEERS * (2 * MEBIBYTE))] * 40,
        *[("Generate", EMPTY_RANGES * (2 * MEBIBYTE))] * 40,
        *[("Generate", UNPACKED_TOKENS * (2 * MEBIBYTE))] * 20,
        *[("Detokenize", UNPACKED_TOKENS * (2 * MEBIBYTE))] * 20,
        *[("Generate", b"\x9a\x01\x80\x80\x80\x02" + EMPTY_OPTIONS * (2 * MEBIBYTE))] * 10,
        *[("Tokenize", GROUPS * (2 * MEBIBYTE))] * 10,
        *[("CloseSession", b"\x0a\x80\x80\x80\x02" + b"a" * (4 * MEBIBYTE))] * 20,
    ]
    small = [
        *[("OpenSession", EMPTY_STEERS * (30 * 2**10))] * 430,
        *[("Generate", EMPTY_RANGES * (8 * 2**10))] * 400,
    ]
    return [*much, *large, *small]


async def main(address: str, key: str) -> None:
    seen: Counter[str] = Counter()
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(address, options) as channel:
        turn = asyncio.Semaphore(10)

        async def call(name: str, data: bytes) -> None:
            async with turn:
                try:
                    asked = channel.stream_stream(f"/salience.v1.Salience/{name}")
                    answer = asked(iter([data]), metadata=(("authorization", f"Bearer {key}"),), timeout=60)
                    async for _ in answer:
                        pass
                    seen["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    seen[error.code().name] += 1

        await asyncio.gather(*(call(*message) for message in messages()))
    print(dict(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
