"""gRPC channels to nodes: one each, opened when it is first needed and closed once its node has left.

Law: a channel is closed when the last call on it has ended; a node's leaving cuts no call off. A node whose
lease was not renewed, or that no longer answers, is not waited for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc

from ganglion.client.settings import GrpcTarget
from ganglion.core.errors import InvalidValue, UpstreamUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.server.grpc.listener import ListenAddress
from ganglion.server.grpc.message_limits import LARGEST_BYTES

_MAX_ANSWER_BYTES: Final = 64 * 2**20
_CONNECT_S: Final = 2.0
"""How long a node may take that does not even refuse."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", LARGEST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Which calls may be made again is decided in `routing.retry`, and nowhere else.
    ("grpc.enable_retries", 0),
    # Else a channel would inherit the back-off of one that was closed.
    ("grpc.use_local_subchannel_pool", 1),
    # A node whose machine vanished says nothing; a node cuts clients that ping more often than every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

_State = grpc.ChannelConnectivity


class ChannelUnreached(UpstreamUnavailable):
    """Nothing of the call was sent."""


class ChannelLost(UpstreamUnavailable):
    """The channel ended during the call."""


class _NodeChannel:
    """A channel, and how many calls are on it."""

    def __init__(self, where: GrpcTarget, authorities: bytes | None) -> None:
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

    def __init__(self, channels: "NodeChannels", channel: _NodeChannel) -> None:
        self._channels = channels
        self._channel = channel

    @property
    def last_heard_s(self) -> float:
        """A channel asks by itself whether its node is there."""
        return 0.0

    def withdraw(self) -> None:
        """The node is not waited for any longer."""
        self._channels.cut(self._channel)


class NodeChannels:
    """Every node's channel by the node's name."""

    def __init__(self, fleet: Fleet, authorities: bytes | None = None) -> None:
        self._fleet = fleet
        self._authorities = authorities
        self._channels: dict[str, _NodeChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        fleet.listen(self._prune)

    @asynccontextmanager
    async def connected(self, view: NodeView) -> AsyncIterator[grpc.aio.Channel]:
        """A node's channel, connected, with one call more on it; raises ChannelUnreached."""
        entry = self._of(view)
        entry.calls += 1
        call = _ChannelCall(self, entry)
        self._fleet.count_in(view.name, call)
        try:
            try:
                await _connect(entry.channel)
            except (TimeoutError, ConnectionError):
                raise ChannelUnreached(f"The node {view.name!r} cannot be reached.") from None
            yield entry.channel
        finally:
            self._fleet.count_out(view.name, call)
            entry.calls -= 1
            if entry.has_left and not entry.calls and not entry.is_closing:
                self._close(entry)

    async def close(self) -> None:
        """Let go of every channel; calls that are still on one end."""
        entries, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(entry.channel.close() for entry in entries), *self._closing)

    def cut(self, entry: _NodeChannel) -> None:
        """End every call on a channel."""
        for name in [name for name, each in self._channels.items() if each is entry]:
            del self._channels[name]
        if not entry.is_closing:
            self._close(entry)

    def _of(self, view: NodeView) -> _NodeChannel:
        where = _channel_target_of(view)
        entry = self._channels.get(view.name)
        if entry is not None and entry.where != where:
            self._retire(view.name)
            entry = None
        if entry is None:
            entry = self._channels[view.name] = _NodeChannel(where, self._authorities)
        return entry

    def _prune(self) -> None:
        for name in self._channels.keys() - self._fleet.nodes.keys():
            self._retire(name)

    def _retire(self, name: str) -> None:
        entry = self._channels.pop(name)
        entry.has_left = True
        if not entry.calls:
            self._close(entry)

    def _close(self, entry: _NodeChannel) -> None:
        entry.is_closing = True
        task = asyncio.get_running_loop().create_task(entry.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _channel_target_of(view: NodeView) -> GrpcTarget:
    """Where a node listens for gRPC: as declared, as it says, or on the port after HTTP's."""
    address = parse_node_url(view.spec.url)
    known = view.spec.grpc or view.grpc
    if known is None and address.unix is not None:
        raise InvalidValue(f"The node {view.name!r} does not say where it listens for gRPC.")
    return GrpcTarget(known or str(ListenAddress(address.host, address.port + 1)), address.is_tls)


async def _connect(channel: grpc.aio.Channel) -> None:
    state = channel.get_state(try_to_connect=True)
    if state is _State.READY:
        return
    async with asyncio.timeout(_CONNECT_S):
        while state is not _State.READY:
            if state in (_State.TRANSIENT_FAILURE, _State.SHUTDOWN):
                raise ConnectionRefusedError
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
