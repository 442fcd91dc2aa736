"""A gateway's view of its fleet: `GET /fleet`, `GET /health`, and the bodies of operators' calls.

`POST /fleet/drain` takes `Drain` and `POST /fleet/move` takes `Move`; both answer
`FleetActionDone` when it is done.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ganglion.wire.decode import decode
from ganglion.wire.fleet import NodeNameParam, ReplicaState

_encode = msgspec.json.Encoder().encode

_FleetStatus = Literal["ok", "impaired", "degraded"]
"""All is well; a node is missing, and everything can still be served; something cannot be."""


class NodeDevice(Struct, frozen=True):
    """Memory of one device; index -1 is the processor's."""

    index: int
    name: str
    memory_total_mb: int
    memory_free_mb: int


class NodeOverview(Struct, frozen=True, kw_only=True):
    """One node, as it was last heard of."""

    name: str
    url: str
    kind: Literal["ganglion", "openai"]
    healthy: bool
    draining: bool
    cooling: bool
    """Left alone for a while after failures in a row."""
    in_flight: int
    """Requests of this gateway that run there."""
    heard_s_ago: float | None
    error: str | None
    version: str
    grpc: str | None
    epoch: int | None
    """Of its lease, where it joined by itself."""
    devices: tuple[NodeDevice, ...]
    models: tuple[ReplicaState, ...]
    engines: dict[str, tuple[str, ...]] = {}
    """The engines that are installed there, and the fields by which each lays a model over devices."""


class Unservable(Struct, frozen=True):
    """A model that nobody could answer for now, and why."""

    model: str
    code: str
    why: str


class FleetOverview(Struct, frozen=True, kw_only=True):
    """The body of `GET /fleet`."""

    status: _FleetStatus
    nodes: tuple[NodeOverview, ...]
    unservable: tuple[Unservable, ...]


class NodeCount(Struct, frozen=True):
    healthy: int
    total: int


class GatewayHealth(Struct, frozen=True, kw_only=True):
    """The body of a gateway's `GET /health`."""

    status: _FleetStatus
    uptime_s: float
    draining: bool
    nodes: NodeCount
    unservable: tuple[Unservable, ...]


class Drain(Struct, frozen=True, kw_only=True):
    """The body of `POST /fleet/drain`: no new work for a node, until `undo`."""

    node: NodeNameParam
    undo: bool = False
    force: bool = False
    """Also where nobody else has what it holds."""


class Move(Struct, frozen=True, kw_only=True):
    """The body of `POST /fleet/move`: a model to a node, and then away from where it was."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    node: NodeNameParam
    keep: bool = False
    """Let the others hold it too."""


class FleetLoadBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /fleet/load`: a model of the catalogue, wherever it fits."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]


class FleetActionDone(Struct, frozen=True, kw_only=True):
    """The result of an operator's call."""

    status: Literal["done"] = "done"
    steps: tuple[str, ...] = ()
    """In words, in order."""


_overview = msgspec.json.Decoder(FleetOverview)
_drain = msgspec.json.Decoder(Drain)
_move = msgspec.json.Decoder(Move)
_load = msgspec.json.Decoder(FleetLoadBody)


def encode(value: FleetOverview | GatewayHealth | Drain | Move | FleetLoadBody | FleetActionDone) -> bytes:
    """Any of these as it goes over the wire."""
    return _encode(value)


def status_of(nodes: Sequence[NodeOverview], unservable: Sequence[Unservable]) -> _FleetStatus:
    """The fleet in one word."""
    if unservable or not any(node.healthy for node in nodes):
        return "degraded"
    return "ok" if all(node.healthy for node in nodes) else "impaired"


def parse_overview(body: bytes) -> FleetOverview:
    """Read a gateway's view of its fleet; raises InvalidRequest."""
    return decode(_overview, body)


def parse_drain(body: bytes) -> Drain:
    """Read which node to drain; raises InvalidRequest."""
    return decode(_drain, body)


def parse_move(body: bytes) -> Move:
    """Read which model moves where; raises InvalidRequest."""
    return decode(_move, body)


def parse_load(body: bytes) -> FleetLoadBody:
    """Read which model to load; raises InvalidRequest."""
    return decode(_load, body)
