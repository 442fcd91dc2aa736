"""The worker's end of the socket, written from several threads."""

import socket
import threading
from collections.abc import Iterator

from ganglion.engines.child_main import LENGTH_PREFIX
from ganglion.engines.supervision.ipc import FromWorker, encode


class FrameSocket:
    """The socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, frame: FromWorker) -> None:
        """Send one frame, waiting while the server is behind."""
        data = encode(frame)
        with self._lock:
            self._connection.sendall(data)

    def bodies(self) -> Iterator[bytes]:
        """Every frame's body until the server is gone."""
        with self._connection.makefile("rb") as stream:
            while prefix := stream.read(LENGTH_PREFIX.size):
                yield stream.read(LENGTH_PREFIX.unpack(prefix)[0])
