"""The endpoints of a node's state: `/health`, `/discovery`, and `/fleet/state`, which a gateway waits on.

Law: a version is the state that was published under it. A change of models, their status or the warm
conversations raises it at the next check; a change of load or of the machine's memory only now and then.
"""

import asyncio
import math
import re
import time
from typing import Final
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine, ModelHolder
from ganglion.core.errors import InvalidValue, Overloaded, RouteNotFound
from ganglion.core.machine import MachineSource
from ganglion.server.endpoints.http import json_response, while_connected
from ganglion.server.fleet_membership import FleetMembership
from ganglion.server.gate import Gate
from ganglion.server.settings import ServerSettings
from ganglion.wire import discovery, fleet, health
from ganglion.wire.fleet import NodeState
from ganglion.wire.health import DeviceHealth, node_status


class HealthEndpoints:
    """`GET /health` and `GET /discovery`; without a source the machine is not known."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        settings: ServerSettings,
        holder: ModelHolder | None,
        machine: MachineSource | None,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._version = settings.build.version
        self._grpc = (
            discovery.GrpcAddress(settings.host, settings.grpc_port)
            if settings.has_grpc and settings.grpc_port is not None
            else None
        )
        self._holder = holder
        self._machine = machine
        self._began_s = time.monotonic()

    async def health(self, _: Request) -> Response:
        """The health of the node; the devices are sampled elsewhere, the rest is read now."""
        devices = () if self._machine is None else await self._machine.readings()
        return json_response(
            health.body(
                self._engine.models(),
                uptime_s=time.monotonic() - self._began_s,
                is_draining=self._gate.is_draining,
                devices=devices,
                activation=None if self._holder is None else self._holder.activation(),
            )
        )

    async def discovery(self, _: Request) -> Response:
        """The description of the node and its machine."""
        if self._machine is None:
            raise RouteNotFound("This server does not know the machine that it runs on.")
        machine = await self._machine.describe()
        max_context = max((model.context_length for model in self._engine.models()), default=None)
        return json_response(
            discovery.body(machine, version=self._version, max_context=max_context, grpc=self._grpc)
        )


_CHECK_S: Final = 0.1
"""How soon a waiting gateway gets a change."""
LOAD_S: Final = 0.5
"""The same where only the load changed: under work it always does."""
_DEVICES_S: Final = 5.0
"""How old a reading of the devices may be."""
_ENGINES_S: Final = 0.5
"""How long a gateway may wait for what is installed here; it is told later otherwise."""
_MAX_WAIT_S: Final = 30.0
_DRAINING_WAIT_S: Final = 0.5
"""The same while the server drains: a waiting gateway must not hold it up."""
_MAX_WAITING: Final = 256
"""Gateways that may wait at once; a fleet has a few."""

_VERSION: Final = re.compile(r"[0-9]{1,18}")


class FleetStateEndpoint:
    """Answers at once, or, where the query names a version, once there is another."""

    def __init__(
        self, engine: Engine, gate: Gate, membership: FleetMembership, machine: MachineSource | None = None
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._membership = membership
        self._machine = machine
        self._devices: tuple[DeviceHealth, ...] = ()
        self._devices_s = -math.inf
        self._engines: dict[str, tuple[str, ...]] | None = None
        self._state = NodeState(boot=membership.boot, version=0, status="loading")
        self._published_s = -math.inf
        self._checked_s = -math.inf
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        since, wait_s = _parse_query(scope["query_string"])
        await while_connected(scope, receive, self._answer(since, wait_s, scope, receive, send))

    async def _answer(
        self, since: int | None, wait_s: float, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if since is None or not wait_s:
            await self._check(asyncio.get_running_loop().time())
        else:
            await self._wait(since, wait_s)
        await json_response(fleet.encode(self._state))(scope, receive, send)

    async def _wait(self, since: int, wait_s: float) -> None:
        """Return once there is another version than this one, or the wait is over."""
        if self._waiting >= _MAX_WAITING:
            raise Overloaded(
                f"{_MAX_WAITING} clients already wait for this node's state.", hint="Ask without 'wait'."
            )
        clock = asyncio.get_running_loop().time
        began_s = clock()
        self._waiting += 1
        try:
            await self._check(began_s)
            while self._state.version == since:
                most_s = min(wait_s, _DRAINING_WAIT_S) if self._gate.is_draining else wait_s
                left_s = began_s + most_s - clock()
                if left_s <= 0:
                    break
                await asyncio.sleep(min(_CHECK_S, left_s))
                if clock() - self._checked_s >= _CHECK_S / 2:  # several who wait check together
                    await self._check(clock())
        finally:
            self._waiting -= 1

    async def _check(self, now_s: float) -> None:
        """Publish a new version where the state has changed."""
        self._checked_s = now_s
        fresh = await self._read_state()
        if fresh == self._state:
            return
        if _urgent_part(fresh) != _urgent_part(self._state) or now_s - self._published_s >= LOAD_S:
            self._state = msgspec.structs.replace(fresh, version=self._state.version + 1)
            self._published_s = now_s

    async def _read_state(self) -> NodeState:
        """The state as it is now, under the version that was published last."""
        devices = await self._read_devices()
        models = self._engine.models()
        return NodeState(
            boot=self._membership.boot,
            version=self._state.version,
            status=node_status(models, is_draining=self._gate.is_draining),
            models=tuple(map(fleet.replica, models)),
            devices=devices,
            digest=self._membership.conversations.affinities(),
            epoch=self._membership.leases.epoch,
            engines=self._engines or {},
        )

    async def _read_devices(self) -> tuple[DeviceHealth, ...]:
        now_s = asyncio.get_running_loop().time()
        if self._machine is not None and now_s - self._devices_s >= _DEVICES_S:
            self._devices_s = now_s
            readings = await self._machine.readings()
            self._devices = tuple(
                msgspec.convert(device, DeviceHealth, from_attributes=True) for device in readings
            )
            if self._engines is None:
                self._engines = await _installed(self._machine)
        return self._devices


async def _installed(machine: MachineSource) -> dict[str, tuple[str, ...]] | None:
    """The engines of the machine, which do not change; None while it cannot be described."""
    try:
        async with asyncio.timeout(_ENGINES_S):
            described = await machine.describe()
    except OSError:  # a timeout is one: a driver may keep the description waiting
        return None
    return {engine.name: engine.layout for engine in described.engines}


def _urgent_part(state: NodeState) -> tuple[object, ...]:
    """The part of the state that a gateway must know at once."""
    models = tuple(
        msgspec.structs.replace(model, in_flight=0, queued=0, last_used=None, memory_mb=0)
        for model in state.models
    )
    return state.status, state.epoch, models, frozenset(state.digest), state.engines


def _parse_query(query: bytes) -> tuple[int | None, float]:
    """The version that is known, None for none, and how long to wait for another; raises InvalidValue."""
    fields = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=16)
    since, wait = fields.get("since", [None])[0], fields.get("wait", ["0"])[0]
    if since is not None and not _VERSION.fullmatch(since):
        raise InvalidValue("Expected a whole number in 'since', as 'version' gave it.", param="since")
    try:
        wait_s = float(wait or "0")
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s < math.inf:
        raise InvalidValue("Expected a number of seconds in 'wait'.", param="wait")
    return (None if since is None else int(since)), min(wait_s, _MAX_WAIT_S)
