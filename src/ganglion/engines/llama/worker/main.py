"""The worker process: one model, its KV and its scheduler, behind a socket.

Started as `python -m ganglion.engines.llama.worker.main FD`. The first frame is the plan.
"""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import msgspec

from ganglion.engines.child_main import confine
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.supervision.frame_socket import FrameSocket

_SPIN_COUNT = "1000"
"""How long OpenMP threads spin at a barrier before they sleep. The library's default spins for milliseconds:
one busy neighbour on our cores then costs 1.5 times the whole step; this costs nothing on quiet ones."""


def main() -> None:
    """Load the model that the first frame describes, then serve it."""
    # Writing gigabytes of weights and prompts to a core file would keep the socket open for as long.
    confine()
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)  # read when the library is loaded
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(open_library)
        # Meanwhile: all that a small model is loaded and served with takes as long to import as to do.
        from ganglion.engines.llama.native.repack import load_planned  # noqa: PLC0415

        bodies = frames.bodies()
        first = next(bodies, None)
        if first is None:
            return
        plan = msgspec.msgpack.decode(first, type=EnginePlan)
        os.nice(plan.niceness)
        began_s = monotonic()
        loading = thread.submit(lambda: load_planned(opening.result(), plan))
        from ganglion.engines.llama.worker.serving import serve  # noqa: PLC0415

        serve(frames, bodies, plan, loading.result, began_s)
    sys.exit(1)


if __name__ == "__main__":
    main()
