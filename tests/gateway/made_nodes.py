"""Nodes made up in a line: for the rooms that only look at what nodes said."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ganglion.gateway.node import DeviceMemory, NodeSpec, NodeView, Replica
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import USUAL_WIRES


def held(model_id: str, status: str = "loaded", **fields: object) -> Replica:
    return Replica(model_id, status, **fields)  # type: ignore[arg-type]


def node(
    name: str,
    *replicas: Replica | str,
    free_mb: int | tuple[int, ...] = 8000,
    digest: tuple[str, ...] = (),
    is_healthy: bool = True,
    is_draining: bool = False,
    is_foreign: bool = False,
    wires: frozenset[Wire] | None = None,
    max_in_flight: int | None = None,
    engines: Mapping[str, tuple[str, ...]] | None = None,
) -> NodeView:
    kind = "openai" if is_foreign else "ganglion"
    spec = NodeSpec(name, f"http://{name}", kind, max_in_flight=max_in_flight)
    spoken = wires or (USUAL_WIRES if is_foreign else spec.wires)
    rooms = (free_mb,) if isinstance(free_mb, int) else free_mb
    return NodeView(
        NodeSpec(name, f"http://{name}", kind, wires=spoken, max_in_flight=max_in_flight),
        is_healthy=is_healthy,
        is_draining=is_draining,
        replicas=tuple(held(each) if isinstance(each, str) else each for each in replicas),
        devices=tuple(DeviceMemory(index, f"card {index}", 24000, mb) for index, mb in enumerate(rooms)),
        digest=frozenset(digest),
        engines={name: frozenset(fields) for name, fields in (engines or {}).items()},
    )


def nodes(*views: NodeView) -> dict[str, NodeView]:
    return {view.name: view for view in views}


@dataclass
class StillLoads:
    """Loads that nobody changes."""

    in_flight: dict[str, int] = field(default_factory=dict)
    cooling: frozenset[str] = frozenset()
    loading: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    unloadable: frozenset[str] = frozenset()

    def is_unloadable(self, model: str) -> bool:
        return model in self.unloadable

    def is_cooling(self, name: str) -> bool:
        return name in self.cooling
