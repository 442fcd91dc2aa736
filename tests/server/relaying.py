"""A gateway's gRPC door before nodes of the test's own, between the plainest policies that there can be."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from ganglion.core.errors import GanglionError, InvalidApiKey, ModelNotFound, NotAllowed
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import EVERYBODY, AdmissionRequest, Identity
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from ganglion.gateway.routing.decision import ChosenNode, ColdModel, NoRoute, RoutingDecision, RoutingRequest
from ganglion.server.gateway.relay.relay_endpoint import RelayEndpoint
from ganglion.server.settings import ServerSettings

SECRET = b"the fleet's own"


@dataclass
class Spread:
    """Chooses the node with the least in flight that holds a model."""

    fleet: Fleet
    cold: frozenset[str] = frozenset()

    def choose(self, asked: RoutingRequest) -> RoutingDecision:
        held = [
            view
            for view in self.fleet.nodes.values()
            if view.takes_work and view.name not in asked.tried
            if any(each.id == asked.model and each.is_servable for each in view.replicas)
        ]
        if held:
            return ChosenNode(min(held, key=lambda view: self.fleet.in_flight[view.name]).spec, asked.model)
        return ColdModel(asked.model) if asked.model in self.cold else NoRoute(ModelNotFound(asked.model))


@dataclass
class Place:
    keys: "Keys"
    identity: Identity
    wanted: AdmissionRequest
    usage: list[Usage | None] = field(default_factory=list)

    def settle(self, usage: Usage | None) -> None:
        assert not self.usage, "settled twice"
        self.usage.append(usage)


@dataclass
class Keys:
    """Knows keys by heart and remembers what each was admitted for."""

    known: dict[str, Identity] = field(default_factory=dict)
    refusal: GanglionError | None = None
    places: list[Place] = field(default_factory=list)

    def identify(self, key: bytes | None) -> Identity:
        if not self.known:
            return EVERYBODY
        found = self.known.get((key or b"").decode())
        if found is None:
            raise InvalidApiKey("The API key is not valid here.")
        return found

    def admit_now(self, identity: Identity, wanted: AdmissionRequest) -> Place | None:
        return None if identity.is_limited else self._admit(identity, wanted)

    async def admit(self, identity: Identity, wanted: AdmissionRequest) -> Place:
        return self._admit(identity, wanted)

    def _admit(self, identity: Identity, wanted: AdmissionRequest) -> Place:
        if identity.models is not None and wanted.model not in identity.models:
            raise NotAllowed(f"This key may not ask for {wanted.model!r}.")
        if self.refusal is not None and wanted.tokens:
            raise self.refusal
        place = Place(self, identity, wanted)
        self.places.append(place)
        return place

    def of_generate(self) -> list[Place]:
        return [place for place in self.places if place.wanted.tokens]


@dataclass
class Loads:
    """Has a model loaded by saying so in the fleet."""

    fleet: Fleet
    asked: list[str] = field(default_factory=list)

    async def load(self, model: str) -> None:
        self.asked.append(model)
        for view in self.fleet.nodes.values():
            self.fleet.put(replace(view, replicas=(Replica(model, "loaded"),)))


@dataclass
class Relayed:
    """A door that relays, and what it stands between."""

    door: RelayEndpoint
    fleet: Fleet
    keys: Keys
    loads: Loads

    @property
    def address(self) -> str:
        return str(self.door.address)


def view_of(name: str, rpc: str, *models: str, **fields: object) -> NodeView:
    """A node that is well and holds these models."""
    port = int(rpc.rsplit(":", 1)[1])
    spec = NodeSpec(name, f"http://127.0.0.1:{port - 1}", grpc=rpc, **fields)
    return NodeView(
        spec, is_healthy=True, last_heard_s=0.0, replicas=tuple(Replica(model, "loaded") for model in models)
    )


@asynccontextmanager
async def relaying(
    views: Iterable[NodeView],
    keys: Keys | None = None,
    *,
    cold: frozenset[str] = frozenset(),
    secret: bytes = SECRET,
    authorities: bytes | None = None,
    **settings: object,
) -> AsyncIterator[Relayed]:
    """The door, open."""
    async with AsyncExitStack() as stack:
        fleet = Fleet()
        for view in views:
            fleet.put(view)
        keys, loads = keys or Keys(), Loads(fleet)
        door = RelayEndpoint(
            ServerSettings(port=0, grpc_port=0, **settings),
            fleet=fleet,
            chooser=Spread(fleet, cold),
            gatekeeper=keys,
            loader=loads,
            secret=secret,
            authorities=authorities,
        )
        stack.push_async_callback(door.close, 0.0)
        await door.open()
        yield Relayed(door, fleet, keys, loads)
