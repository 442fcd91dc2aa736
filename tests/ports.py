"""Ports that nothing listens on."""

import socket


def two_ports() -> int:
    """The first of two free ports that follow each other: HTTP's and gRPC's."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports follow each other")
