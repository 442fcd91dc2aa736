"""Pools of connections to nodes, kept open for the next request."""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from ganglion.core.errors import UpstreamUnavailable
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.address import NodeAddress, parse_node_url
from ganglion.gateway.upstream.upstream_connection import UpstreamConnection
from ganglion.gateway.upstream.write_coalescer import WriteCoalescer

_CONNECT_S = 3.0
MAX_IDLE = 512
"""Free connections kept to one node."""
IDLE_S = 10.0
"""Shorter than a node keeps one: a request should not meet a connection that is just being closed."""


_MAX_POOLS = 2048
"""Addresses whose connections are kept: more than there may be nodes, since nodes move."""


class NodeUnreached(UpstreamUnavailable):
    """Nothing was sent, so another node may be tried without running the request twice."""


class StaleConnection(UpstreamUnavailable):
    """A connection that had been kept open ended before anything came."""


class ConnectionPool:
    """Connections to one address."""

    def __init__(
        self,
        address: NodeAddress,
        *,
        writes: WriteCoalescer | None = None,
        connect_s: float = _CONNECT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._writes = writes or WriteCoalescer()
        self._connect_s = connect_s
        self._clock = clock
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._tls: ssl.SSLContext | None = None

    def take(self) -> UpstreamConnection | None:
        """A free connection, the last one used first; None where one must be made."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_usable:
                continue
            if self._clock() - connection.idle_since_s > IDLE_S:
                # The others have been free for longer still.
                for stale in (connection, *self._idle):
                    stale.close()
                self._idle.clear()
                return None
            return connection
        return None

    async def connect(self, timeout_s: float | None = None) -> UpstreamConnection:
        """A new connection; raises NodeUnreached."""
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(self._connect_s if timeout_s is None else timeout_s):
                if address.unix is not None:
                    _, connection = await loop.create_unix_connection(self._new_connection, address.unix)
                else:
                    if address.is_tls and self._tls is None:
                        # Once: it reads every certificate that this machine trusts.
                        self._tls = ssl.create_default_context()
                    _, connection = await loop.create_connection(
                        self._new_connection, address.host, address.port, ssl=self._tls
                    )
        except (OSError, UnicodeError) as error:  # the latter for names that no resolver takes
            why = str(error) or "it did not answer in time"
            raise NodeUnreached(f"{address.authority} cannot be reached: {why}.") from None
        if not connection.is_usable:
            raise NodeUnreached(f"{address.authority} closed the connection at once.")
        self._all.add(connection)
        return connection

    @property
    def is_empty(self) -> bool:
        """Whether there is no connection."""
        return not self._all

    def close(self) -> None:
        """Close what is free, and cut what is not."""
        for connection in tuple(self._all):
            connection.abort()
        self._idle.clear()

    def _new_connection(self) -> UpstreamConnection:
        return UpstreamConnection(self._freed, self._writes)

    def _freed(self, connection: UpstreamConnection) -> None:
        if not connection.is_usable:
            self._all.discard(connection)
            with suppress(ValueError):
                self._idle.remove(connection)
            if connection.is_stale:  # and so may the others be
                for idle in self._idle:
                    idle.close()
                self._idle.clear()
            return
        if len(self._idle) >= MAX_IDLE:
            connection.close()
            return
        connection.idle_since_s = self._clock()
        self._idle.append(connection)


class ConnectionPools:
    """One pool for each address that a node has."""

    def __init__(self, connect_s: float = _CONNECT_S) -> None:
        self._connect_s = connect_s
        self._pools: dict[str, ConnectionPool] = {}
        self.writes = WriteCoalescer()
        """Coalesces the writes to all of these connections."""

    def of(self, spec: NodeSpec) -> ConnectionPool:
        """The pool of a node; raises InvalidValue where its URL is none."""
        pool = self._pools.get(spec.url)
        if pool is None:
            if len(self._pools) >= _MAX_POOLS:
                self._pools = {url: each for url, each in self._pools.items() if not each.is_empty}
            pool = self._pools[spec.url] = ConnectionPool(
                parse_node_url(spec.url), writes=self.writes, connect_s=self._connect_s
            )
        return pool

    def close(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
