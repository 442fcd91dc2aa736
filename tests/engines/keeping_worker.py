"""A worker without a model that takes half of its time to keep something in the file that its plan names."""

import socket
import sys
import time
from pathlib import Path

from ganglion.engines.supervision.ipc import LENGTH_PREFIX, StopWorker, WorkerReady, encode, to_worker


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    stream = line.makefile("rb")
    path = Path(stream.read(LENGTH_PREFIX.unpack(stream.read(LENGTH_PREFIX.size))[0]).decode())
    line.sendall(encode(WorkerReady(1, 0.0)))
    stop = to_worker.decode(stream.read(LENGTH_PREFIX.unpack(stream.read(LENGTH_PREFIX.size))[0]))
    assert isinstance(stop, StopWorker)
    time.sleep(stop.keep_s / 2)
    path.write_text("kept")


if __name__ == "__main__":
    main()
