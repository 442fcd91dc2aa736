"""Nodes as values: what was declared of each, and what it last reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ganglion.core.engine import Status
from ganglion.core.sampling import Sampling
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import ALL_WIRES

NodeKind = Literal["ganglion", "openai"]
"""One of ours, or any server that speaks OpenAI's chat completions."""

FOREIGN_SAMPLING = Sampling(temperature=1.0, top_p=1.0)
"""What a foreign server is assumed to do where a request says nothing: OpenAI's own defaults."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as it was declared, or as it joined."""

    name: str
    url: str
    """`http://host:port`, or with `https`; a foreign one may carry a path before `/v1`."""
    kind: NodeKind = "ganglion"
    api_key: str | None = None
    """The gateway's own key there, never a client's."""
    wires: frozenset[Wire] = ALL_WIRES
    """Names of the dialects that it speaks."""
    max_in_flight: int | None = None
    """Requests that the gateway has running on it at once; None for no cap."""
    cool_down_after: int = 3
    """Failures in a row after which it is left alone for a while."""
    cool_down_s: float = 10.0
    models: frozenset[str] | None = None
    """Only these of the models that it lists; None for all."""
    vision: frozenset[str] = frozenset()
    """Models of a foreign server that take images, `*` for all."""
    epoch: int | None = None
    """Of the lease of a node that joined; None where it was declared."""
    grpc: str | None = None
    """`host:port` of its sessions; None where the port after HTTP's is meant, or what `/discovery` says."""

    def is_same_server(self, other: "NodeSpec") -> bool:
        """Whether both mean one server, whatever else was declared of it."""
        return (self.url, self.kind) == (other.url, other.kind)

    @property
    def is_ours(self) -> bool:
        """Whether it is one of our nodes, and not a foreign server."""
        return self.kind == "ganglion"


@dataclass(frozen=True, slots=True)
class Replica:
    """One model as one node holds it, or could."""

    id: str
    status: Status
    aliases: tuple[str, ...] = ()
    engine: str = ""
    in_flight: int = 0
    queued: int = 0
    slots_total: int = 0
    context_length: int = 0
    capabilities: tuple[str, ...] = ()
    memory_mb: int = 0
    is_pinned: bool = False
    priority: int = 0
    last_used_s: float | None = None
    created_s: int = 0
    devices: tuple[str, ...] = ()
    error: str | None = None
    sampling: Sampling = Sampling()
    """The model's own defaults there."""

    @property
    def is_servable(self) -> bool:
        """Whether a request may go there now."""
        return self.status == "loaded"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device of a node; index -1 is the processor's."""

    index: int
    name: str
    total_mb: int
    free_mb: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it last reported itself."""

    spec: NodeSpec
    is_healthy: bool = False
    is_draining: bool = False
    replicas: tuple[Replica, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    engines: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Installed engines, and by which fields each lays a model over devices; empty where it says none."""
    digest: frozenset[str] = frozenset()
    """Affinities of the conversations that its prefix cache knows."""
    boot: str = ""
    """An id that changes each time the node starts."""
    grpc: str | None = None
    version: str = ""
    last_heard_s: float | None = None
    """On the monotonic clock; None before its first answer."""
    failures: int = 0
    """In a row; three make it unhealthy."""
    is_silent: bool = False
    """Whether it is unhealthy because it does not answer: then requests that run there are given up."""
    error: str | None = None
    """Why the last attempt to reach it failed."""

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.spec.name

    def sampling_of(self, model: str) -> Sampling:
        """The sampling defaults of a model, by the id that this node gives it."""
        held = next((replica for replica in self.replicas if replica.id == model), None)
        if held is not None:
            return held.sampling
        return Sampling() if self.spec.is_ours else FOREIGN_SAMPLING

    @property
    def takes_work(self) -> bool:
        """Whether new requests may go there."""
        return self.is_healthy and not self.is_draining
