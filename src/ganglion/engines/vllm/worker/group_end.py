"""The end of the worker, with all processes that vLLM started."""

import os
import sys
from typing import NoReturn

from ganglion.engines.supervision.launch import kill_group


def end_all(code: int) -> NoReturn:
    """End everything at once; this process comes last, and its exit code says why."""
    sys.stdout.flush()
    sys.stderr.flush()
    own = os.getpid()
    if os.getpgid(0) == own:
        kill_group(own, spared=own)
    os._exit(code)
