"""Messages between a gateway and its nodes: a node's state, joining and leaving.

`GET /fleet/state[?since=VERSION&wait=SECONDS]` answers `NodeState` at once, or, when `since` is the version
that it would tell, once something changed or the wait is over. `POST /fleet/join` takes `Join` and answers
`Lease`; asked again before the lease is over it renews it. `POST /fleet/leave` takes `Leave`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ganglion.core.engine import ModelState, Status
from ganglion.core.events import Usage
from ganglion.core.sampling import Sampling
from ganglion.wire.decode import decode
from ganglion.wire.health import DeviceHealth, NodeStatus

_encode = msgspec.json.Encoder().encode
_NO_SAMPLING = Sampling()

NodeNameParam = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]{1,64}(?!\n)$")]
"""Of a node: it stands in session ids, metrics and addresses."""


class ReplicaState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model of a node."""

    id: str
    status: Status
    engine: str = ""
    aliases: tuple[str, ...] = ()
    in_flight: int = 0
    queued: int = 0
    slots_total: int = 0
    context_length: int = 0
    capabilities: tuple[str, ...] = ()
    memory_mb: int = 0
    pinned: bool = False
    priority: int = 0
    last_used: float | None = None
    created: int = 0
    devices: tuple[str, ...] = ()
    error: str | None = None
    sampling: Sampling | None = None
    """The model's own defaults; null where it has none."""


class NodeState(Struct, frozen=True, kw_only=True):
    """The body of `GET /fleet/state`."""

    boot: str
    """Another one each time the node starts."""
    version: int
    """Rises with each change within one boot."""
    status: NodeStatus
    models: tuple[ReplicaState, ...] = ()
    devices: tuple[DeviceHealth, ...] = ()
    digest: tuple[str, ...] = ()
    """Affinities that the prefix caches know, the latest last."""
    epoch: int | None = None
    """Of the lease that the node holds; null where it did not join, or lost it."""
    engines: dict[str, tuple[str, ...]] = {}
    """The engines that are installed, and the fields by which each lays a model over devices."""


class Join(Struct, frozen=True, kw_only=True):
    """The body of `POST /fleet/join`."""

    name: NodeNameParam
    url: Annotated[str, Meta(pattern=r"^https?://[^\s/]+/?$")]
    """Under which the gateway reaches the node."""
    boot: str
    grpc: str | None = None
    epoch: int | None = None
    """Of the lease that the node believes to hold; null when it begins."""


class Lease(Struct, frozen=True, kw_only=True):
    """The answer to a join."""

    name: str
    epoch: int
    """Another, larger one whenever the lease was not renewed in time, or the node started anew."""
    lease_s: float
    """From when the node *sent* its request; not renewed by then, it is over."""


class Leave(Struct, frozen=True, kw_only=True):
    """The body of `POST /fleet/leave`."""

    name: NodeNameParam
    epoch: int


_state = msgspec.json.Decoder(NodeState)
_join = msgspec.json.Decoder(Join)
_lease = msgspec.json.Decoder(Lease)
_leave = msgspec.json.Decoder(Leave)


class TokenUsage(Struct, frozen=True, omit_defaults=True):
    """The counts in a stream's last event, where a gateway asked for them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


_usage = msgspec.json.Decoder(TokenUsage)


def replica(model: ModelState) -> ReplicaState:
    """A model as its node tells it."""
    return ReplicaState(
        id=model.id,
        status=model.status,
        engine=model.engine,
        aliases=model.aliases,
        in_flight=model.in_flight,
        queued=model.queued,
        slots_total=model.slots_total,
        context_length=model.context_length,
        capabilities=model.abilities,
        memory_mb=model.memory_mb,
        pinned=model.is_pinned,
        priority=model.priority,
        last_used=model.last_used_s,
        created=model.created_s,
        devices=model.devices,
        error=model.error,
        sampling=None if model.sampling == _NO_SAMPLING else model.sampling,
    )


def encode(value: NodeState | Join | Lease | Leave) -> bytes:
    """Any of these as it goes over the wire."""
    return _encode(value)


def parse_state(body: bytes) -> NodeState:
    """Read a node's state; raises InvalidRequest."""
    return decode(_state, body)


def parse_join(body: bytes) -> Join:
    """Read a request to join; raises InvalidRequest."""
    return decode(_join, body)


def parse_lease(body: bytes) -> Lease:
    """Read the lease that a gateway granted; raises InvalidRequest."""
    return decode(_lease, body)


def parse_leave(body: bytes) -> Leave:
    """Read a request to leave; raises InvalidRequest."""
    return decode(_leave, body)


def encode_usage(usage: Usage) -> bytes:
    """Counts for the last event of a stream."""
    return _encode(
        TokenUsage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
    )


def parse_usage(data: bytes) -> Usage:
    """The counts of a stream's last event; raises InvalidRequest."""
    told = decode(_usage, data)
    return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens, told.reasoning_tokens)
