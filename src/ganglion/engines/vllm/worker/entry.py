"""The worker process of one checkpoint.

Started as `python -m ganglion.engines.vllm.worker.entry FD` by vLLM's own Python. The first frame is the
plan. vLLM starts further processes, which import this module once more: it does nothing then.
"""

import os
import socket
import sys

import msgspec

from ganglion.engines.child_main import confine
from ganglion.engines.supervision.frame_socket import FrameSocket
from ganglion.engines.vllm.vllm_plan import VllmPlan
from ganglion.engines.vllm.worker.error_log import ErrorLog


def main() -> None:
    """Load the checkpoint that the first frame describes, then serve it."""
    confine()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    frames = FrameSocket(connection)
    bodies = frames.bodies()
    first = next(bodies, None)
    if first is None:
        return
    plan = msgspec.msgpack.decode(first, type=VllmPlan)
    log = ErrorLog.begin()
    from ganglion.engines.vllm.worker.frame_reader import serve  # noqa: PLC0415 - imports vLLM, once

    serve(frames, bodies, plan, log)
    os._exit(1)


if __name__ == "__main__":
    main()
