"""The process of a conversion, before it becomes the other Python: limits that outlast the change.

Law: it is given no secret of the environment and no core file, Ctrl-C is its parent's, it asks no hub, it
ends with its parent where the system can see to that, and what is meant for our own Python does not reach the
other one.
"""

import ctypes
import os
import signal
import sys
from typing import Final

from ganglion.engines.child_main import confine

_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_OURS: Final = ("PYTHONPATH", "PYTHONHOME")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def main() -> None:
    """Become the command that is given after the id of the parent, confined."""
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    os.nice(_NICENESS)
    confine()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it is gone already
        sys.exit(1)
    environment = {name: value for name, value in os.environ.items() if name not in _OURS}
    os.execve(arguments[0], arguments, environment | _OFFLINE)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
