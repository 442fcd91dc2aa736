"""A worker without a model, for the supervisor's tests; the plan, its first frame, says how it ends.

`die` ends before it is ready, `blink` as soon as it is, `refuse` says why it cannot load, `live` stays until
it is told to stop and `stubborn` for ever.
"""

import os
import signal
import socket
import sys
import time

from ganglion.engines.ipc import PREFIX, Ready, Refused, encode


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    stream = line.makefile("rb")
    word = stream.read(PREFIX.unpack(stream.read(PREFIX.size))[0]).decode()
    if word == "die":
        sys.exit(3)
    if word == "refuse":
        line.sendall(encode(Refused(0, "load_failed", "not a model", "fetch it again", {})))
        return
    if word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line.sendall(encode(Ready(1, 0.0)))
    if word == "blink":
        os._exit(0)
    if word == "stubborn":
        time.sleep(600)
    stream.read(1)


if __name__ == "__main__":
    main()
