"""Says in the log that this process has no file descriptor left, and that it has again.

Reason: the event loop's library accepts a connection for which there is no descriptor only to close it, and
tells nobody. Clients see connections that end at once, and an operator would see nothing at all.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Final

_logger = logging.getLogger("ganglion.server")

_AGAIN_S: Final = 60.0
"""How often it is said while it lasts."""


class DescriptorWatch:
    """Looks whether one more file could be opened."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_s: float | None = None

    def look(self) -> None:
        """Look, and say what changed; cheap enough for every tick of a server."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._say()
            return
        if self._said_s is not None:
            self._said_s = None
            _logger.warning("there are file descriptors again, and clients can connect")

    def _say(self) -> None:
        now_s = self._clock()
        if self._said_s is None or now_s - self._said_s >= _AGAIN_S:
            self._said_s = now_s
            _logger.error(
                "no file descriptor is left: new connections are closed. Raise the limit (ulimit -n, "
                "LimitNOFILE) or lower server.max_connections."
            )
