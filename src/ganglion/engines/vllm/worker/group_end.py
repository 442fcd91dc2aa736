"""The end of the worker, with all processes that vLLM started."""

import os
import sys
from time import sleep
from typing import Final, NoReturn

from ganglion.engines.supervision.launch import kill_group

_LAST_WORDS_S: Final = 0.1
"""For the thread that copies what was written last to the log."""


def end_all(code: int) -> NoReturn:
    """End everything at once; this process comes last, and its exit code says why."""
    sys.stdout.flush()
    sys.stderr.flush()
    sleep(_LAST_WORDS_S)
    own = os.getpid()
    if os.getpgid(0) == own:
        kill_group(own, spared=own)
    os._exit(code)
