"""Joining gateways: a node asks each for a lease, renews it, and gives it back when it leaves.

Law: between the sending of a request and its answer a lease only grows older: it counts from the sending.
Each change is logged once, however often it is tried.
"""

import asyncio
import logging
import random
import re
import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final

import msgspec

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.server.bind import StartRefused
from ganglion.server.fleet_membership import FleetMembership
from ganglion.server.settings import JoinSettings, ServerSettings
from ganglion.wire import fleet

_logger = logging.getLogger("ganglion.server")

_CALL_S: Final = 5.0
_LEAVE_S: Final = 2.0
"""How much of a shutdown leaving may take."""
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_MAX_LEASE_S: Final = 86_400.0
_MAX_GATEWAYS: Final = 16
_SHOWN: Final = 300
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound
_JSON: Final = ((b"content-type", b"application/json"),)
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_NAME_DIGITS: Final = 64
_ADVERTISED: Final = re.compile(r"https?://[^\s/]+/?")


class _Error(msgspec.Struct):
    message: str


class _JoinEnvelope(msgspec.Struct):
    error: _Error


_envelope = msgspec.json.Decoder(_JoinEnvelope)


def check_join(join: JoinSettings, settings: ServerSettings) -> None:
    """Raise what is wrong with the settings, before anything is loaded."""
    if len(join.urls) > _MAX_GATEWAYS:
        raise InvalidValue(f"Expected at most {_MAX_GATEWAYS} gateways to join, found {len(join.urls)}.")
    for url in join.urls:
        parse_node_url(url)
    if join.name is not None and not _NAME.fullmatch(join.name):
        raise InvalidValue(
            f"{join.name!r} is not a valid name for a node.",
            param="join.name",
            hint="Use up to 64 letters, digits, '-', '_' and '.'.",
        )
    if join.advertise is not None and not _ADVERTISED.fullmatch(join.advertise):
        raise InvalidValue(
            f"{join.advertise!r} is not the URL of a node.",
            param="join.advertise",
            hint="Give http://HOST:PORT.",
        )
    if join.urls and join.advertise is None and settings.host in _WILDCARDS:
        raise StartRefused(
            f"A gateway cannot call {settings.host or 'every address'}.",
            hint="Say under which URL it reaches this node with --advertise http://HOST:PORT.",
        )


def join_request(join: JoinSettings, settings: ServerSettings, url: str, boot: str) -> fleet.Join:
    """The request by which a node joins; `url` is where it listens, and `settings` has the ports it got."""
    advertised = (join.advertise or url).rstrip("/")
    host = parse_node_url(advertised).host
    shown = f"[{host}]" if ":" in host else host
    name = join.name or default_node_name(socket.gethostname(), settings.port)
    grpc = f"{shown}:{settings.grpc_port}" if settings.has_grpc else None
    return fleet.Join(name=name, url=advertised, boot=boot, grpc=grpc)


def default_node_name(hostname: str, port: int) -> str:
    """A node's name from the host's name and the port."""
    ending = f"-{port}"
    host = re.sub(r"[^A-Za-z0-9_.\-]", "-", hostname) or "node"
    return host[: _NAME_DIGITS - len(ending)] + ending


class _GatewayLeases:
    """A node's leases at its gateways, from `start` to `leave`."""

    def __init__(self, renewers: Sequence["_LeaseRenewer"]) -> None:
        self._renewers = renewers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Ask for leases, and renew them, until `leave`."""
        self._tasks = [asyncio.create_task(renewer.run()) for renewer in self._renewers]

    async def leave(self, hurry: asyncio.Event) -> None:
        """Stop renewing, and give the leases back, within `_LEAVE_S` or until `hurry` is set."""
        await self.stop()
        leaving = asyncio.gather(*(renewer.leave() for renewer in self._renewers))
        hurried = asyncio.create_task(hurry.wait())
        try:
            await asyncio.wait((leaving, hurried), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            hurried.cancel()
            await asyncio.gather(leaving, hurried, return_exceptions=True)

    async def stop(self) -> None:
        """Stop renewing; leases that were not given back expire."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def joined_gateways(
    join: JoinSettings, settings: ServerSettings, url: str, membership: FleetMembership
) -> AsyncGenerator[_GatewayLeases, None]:
    """While inside, the node that listens at `url` holds leases at its gateways, until it leaves."""
    pools = ConnectionPools()
    leases = _GatewayLeases(
        [
            _LeaseRenewer(
                gateway,
                join.key,
                join_request(join, settings, url, membership.boot),
                membership,
                NodeClient(pools),
            )
            for gateway in join.urls
        ]
    )
    leases.start()
    try:
        yield leases
    finally:
        await leases.stop()
        pools.close()


class _LeaseRenewer:
    """Holds one node's lease at one gateway."""

    def __init__(
        self,
        gateway: str,
        key: str | None,
        join: fleet.Join,
        membership: FleetMembership,
        node_client: NodeClient,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._spec = NodeSpec("gateway", gateway, api_key=key)
        self._join = join
        self._leases = membership.leases
        self._node_client = node_client
        self._clock = clock
        self._is_member = False
        self._logged_error: str | None = None
        self._call_s = _CALL_S
        self._longest_pause_s = _LONGEST_PAUSE_S

    async def run(self) -> None:
        """Hold a lease until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            sent_s = self._clock()
            try:
                lease = await self._ask()
            except GanglionError as error:
                self._log_failed(error)
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
                pause_s = min(2 * pause_s, self._longest_pause_s)
            else:
                self._leases.hold(self._gateway, lease.epoch, sent_s + lease.lease_s)
                self._bound_waits(lease.lease_s)
                self._log_joined(lease)
                pause_s = min(_FIRST_PAUSE_S, self._longest_pause_s)
                await asyncio.sleep(lease.lease_s / 3 * random.uniform(0.8, 1.0))  # noqa: S311 - no secret

    async def leave(self) -> None:
        """Give the lease back; a gateway that cannot be reached lets it expire."""
        epoch = self._leases.epoch_of(self._gateway)
        if epoch is None:
            return
        left = fleet.encode(fleet.Leave(name=self._join.name, epoch=epoch))
        with suppress(GanglionError):
            await self._node_client.call(
                self._spec, "POST", "/fleet/leave", headers=_JSON, body=left, timeout_s=_LEAVE_S
            )
        self._leases.drop(self._gateway)
        _logger.info("left the gateway %s", self._gateway)

    async def _ask(self) -> fleet.Lease:
        request = msgspec.structs.replace(self._join, epoch=self._leases.epoch_of(self._gateway))
        answer = await self._node_client.call(
            self._spec,
            "POST",
            "/fleet/join",
            headers=_JSON,
            body=fleet.encode(request),
            timeout_s=self._call_s,
        )
        if answer.status != HTTPStatus.OK:
            raise _refusal(answer)
        lease = fleet.parse_lease(answer.body)
        if not 0 < lease.lease_s <= _MAX_LEASE_S:
            raise InvalidValue(f"It granted a lease of {lease.lease_s:g} s.")
        return lease

    def _bound_waits(self, lease_s: float) -> None:
        """Bound a call and a pause so that a node that was cut off is back within one lease."""
        self._call_s = min(_CALL_S, lease_s / 2)
        self._longest_pause_s = min(_LONGEST_PAUSE_S, lease_s / 3)

    def _log_joined(self, lease: fleet.Lease) -> None:
        if not self._is_member:
            _logger.info("joined the gateway %s as %s, epoch %d", self._gateway, lease.name, lease.epoch)
        self._is_member, self._logged_error = True, None

    def _log_failed(self, error: GanglionError) -> None:
        if self._is_member and self._leases.epoch_of(self._gateway) is None:
            self._is_member = False
            _logger.warning("lost the lease of the gateway %s: %s", self._gateway, error.message)
            self._logged_error = error.code
        if not self._is_member and self._logged_error != error.code:
            self._logged_error = error.code
            _logger.error("cannot join the gateway %s: %s", self._gateway, error.full_message)


def _refusal(answer: NodeResponse) -> GanglionError:
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return _KeyRefused(
            f"It refuses the key of this node ({answer.status}).",
            hint="Set GANGLION_JOIN__KEY, or --join-key, to a key of that gateway that may join nodes.",
        )
    try:
        why = _envelope.decode(answer.body).error.message[:_SHOWN]
    except msgspec.DecodeError:
        why = "It may not be a gateway."
    return InvalidValue(f"It answered {answer.status}. {why}")


class _KeyRefused(GanglionError):
    """The gateway does not let this node join."""

    code = "invalid_api_key"
