"""Ports that nothing listens on, below those that the system gives to clients at any moment."""

import os
import socket
from contextlib import ExitStack

FIRST, COUNT = 10_000, 20_000


def free_port() -> int:
    """A port for one server."""
    return _first_of(1)


def two_ports() -> int:
    """The first of two free ports that follow each other: HTTP's and gRPC's."""
    return _first_of(2)


def _first_of(count: int) -> int:
    for _ in range(200):
        port = FIRST + int.from_bytes(os.urandom(4)) % COUNT
        with ExitStack() as tried:
            try:
                for number in range(port, port + count):
                    each = tried.enter_context(socket.socket())
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    each.bind(("127.0.0.1", number))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
