"""The ways to nodes: one channel each, opened when it is first needed and closed once its node has left.

Law: a channel is closed when the last call on it has ended; a node's leaving cuts nobody off. One whose lease
was not renewed, or who no longer answers, is not waited for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from ganglion.core.errors import InvalidValue, UpstreamUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.server.grpc.listener import ListenAddress
from ganglion.server.grpc.message_limits import LARGEST_BYTES

MAX_ANSWER_BYTES: Final = 64 * 2**20
CONNECT_S: Final = 2.0
"""For a node that does not even refuse."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", LARGEST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Which calls may be made again is decided in `nodes`, and nowhere else.
    ("grpc.enable_retries", 0),
    # Else a channel would inherit the back-off of one that was closed.
    ("grpc.use_local_subchannel_pool", 1),
    # A node whose machine vanished says nothing; a node cuts whoever asks more often than every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

_State = grpc.ChannelConnectivity


class ChannelUnreached(UpstreamUnavailable):
    """Nothing of the call was sent."""


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """A host and port as gRPC takes them, and whether TLS is spoken there."""

    target: str
    is_tls: bool


class _NodeChannel:
    """A channel, and how many calls are on it."""

    def __init__(self, where: ChannelTarget, authorities: bytes | None) -> None:
        self.where = where
        self.calls = 0
        self.has_left = False
        self.is_closing = False
        self.channel = (
            grpc.aio.secure_channel(where.target, grpc.ssl_channel_credentials(authorities), _OPTIONS)
            if where.is_tls
            else grpc.aio.insecure_channel(where.target, _OPTIONS)
        )


class _ChannelCall:
    """A call on a node's channel, for the fleet to end."""

    def __init__(self, lines: "NodeChannels", line: _NodeChannel) -> None:
        self._lines = lines
        self._line = line

    @property
    def last_heard_s(self) -> float:
        """A channel asks by itself whether its node is there."""
        return 0.0

    def withdraw(self) -> None:
        """The node is not waited for any longer."""
        self._lines.cut(self._line)


class NodeChannels:
    """Every node's channel by the node's name."""

    def __init__(self, fleet: Fleet, authorities: bytes | None = None) -> None:
        self._fleet = fleet
        self._authorities = authorities
        self._lines: dict[str, _NodeChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        fleet.listen(self._prune)

    @asynccontextmanager
    async def held(self, view: NodeView) -> AsyncIterator[grpc.aio.Channel]:
        """A node's channel, connected, and one call more on it; raises NotReached."""
        line = self._of(view)
        line.calls += 1
        call = _ChannelCall(self, line)
        self._fleet.count_in(view.name, call)
        try:
            try:
                await _connect(line.channel)
            except (TimeoutError, ConnectionError):
                self._fleet.failed(view.name)
                raise ChannelUnreached(f"The node {view.name!r} cannot be reached.") from None
            yield line.channel
        finally:
            self._fleet.count_out(view.name, call)
            line.calls -= 1
            if line.has_left and not line.calls and not line.is_closing:
                self._close(line)

    async def close(self) -> None:
        """Let go of every channel; calls that are still on one end."""
        lines, self._lines = list(self._lines.values()), {}
        await asyncio.gather(*(line.channel.close() for line in lines), *self._closing)

    def cut(self, line: _NodeChannel) -> None:
        """End every call on a channel."""
        for name in [name for name, each in self._lines.items() if each is line]:
            del self._lines[name]
        if not line.is_closing:
            self._close(line)

    def _of(self, view: NodeView) -> _NodeChannel:
        where = channel_target_of(view)
        line = self._lines.get(view.name)
        if line is not None and line.where != where:
            self._retire(view.name)
            line = None
        if line is None:
            line = self._lines[view.name] = _NodeChannel(where, self._authorities)
        return line

    def _prune(self) -> None:
        for name in self._lines.keys() - self._fleet.nodes.keys():
            self._retire(name)

    def _retire(self, name: str) -> None:
        line = self._lines.pop(name)
        line.has_left = True
        if not line.calls:
            self._close(line)

    def _close(self, line: _NodeChannel) -> None:
        line.is_closing = True
        task = asyncio.get_running_loop().create_task(line.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def channel_target_of(view: NodeView) -> ChannelTarget:
    """Where a node listens for gRPC: as declared, as it says, or beside HTTP."""
    address = parse_node_url(view.spec.url)
    told = view.spec.grpc or view.grpc
    if told is None and address.unix is not None:
        raise InvalidValue(f"The node {view.name!r} does not say where it listens for gRPC.")
    return ChannelTarget(told or str(ListenAddress(address.host, address.port + 1)), address.is_tls)


async def _connect(channel: grpc.aio.Channel) -> None:
    state = channel.get_state(try_to_connect=True)
    if state is _State.READY:
        return
    async with asyncio.timeout(CONNECT_S):
        while state is not _State.READY:
            if state in (_State.TRANSIENT_FAILURE, _State.SHUTDOWN):
                raise ConnectionRefusedError
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
