"""Ports that nothing listens on, below those that the system gives to clients at any moment."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

FIRST, SHARE, SHARES = 10_000, 2_500, 8


def free_port() -> int:
    """A port for HTTP, with the next one free for gRPC.

    None is told twice, nor by two processes of one run: between its telling and its server's start, or
    while that server is down, a port looks free.
    """
    for port in _untold():
        with suppress(OSError), socket.socket() as http, socket.socket() as grpc:
            for each, number in ((http, port), (grpc, port + 1)):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                each.bind(("127.0.0.1", number))
            return port
    raise AssertionError("no port is free")


@cache
def _untold() -> Iterator[int]:
    """Each second port of this process's share, from anywhere in it: another run may be under way."""
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SHARES
    start = int.from_bytes(os.urandom(4))
    return (FIRST + share * SHARE + (start + each) * 2 % SHARE for each in range(SHARE // 2))
