"""The parts of a gateway, put together: who is there, who answers, who may ask."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ganglion.core.engine import ModelState
from ganglion.gateway.catalogue import Catalogue, CatalogueModel
from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.inquiry import PollSettings
from ganglion.gateway.loader import FleetLoader
from ganglion.gateway.membership import Membership, first_epoch
from ganglion.gateway.outbound import Outbound
from ganglion.gateway.poller import Poller
from ganglion.gateway.pool import Pools
from ganglion.gateway.price import PER_TOKENS, Price
from ganglion.gateway.router import Router
from ganglion.gateway.scaler import Scaler
from ganglion.registry.names import fold
from ganglion.server.gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything about the fleet that a gateway holds while it runs."""

    fleet: Fleet
    pools: Pools
    router: Router
    poller: Poller
    membership: Membership
    loader: FleetLoader
    scaler: Scaler
    engine: FleetEngine


def assembled(settings: GatewaySettings) -> Assembly:
    """The parts over the declared nodes; nothing runs yet."""
    fleet = Fleet(settings.nodes)
    pools = Pools()
    outbound = Outbound(pools)
    router = Router(fleet, settings.catalogue)
    poller = Poller(fleet, outbound, PollSettings(every_s=settings.poll_s))
    loader = FleetLoader(fleet, settings.catalogue, outbound, poke=poller.poke)
    listed = listing_of(settings.catalogue)
    return Assembly(
        fleet,
        pools,
        router,
        poller,
        Membership(
            fleet,
            first_epoch=first_epoch(time.time()),
            lease_s=settings.lease_s,
            node_key=settings.node_key,
        ),
        loader,
        Scaler(fleet, settings.catalogue, loader),
        FleetEngine(fleet, router, outbound, loader, catalogue=lambda: listed, poke=poller.poke),
    )


def listing_of(catalogue: Catalogue) -> tuple[ModelState, ...]:
    """What the catalogue promises, for the list of models: nobody holds it yet."""
    return tuple(
        ModelState(
            id=model.id,
            engine=model.engine or "",
            status="unloaded",
            context_length=model.context_length or 0,
            created_s=0,
            aliases=(*model.aliases, *_source_of(model, catalogue)),
            priority=model.priority,
        )
        for model in catalogue.models
    )


def _source_of(model: CatalogueModel, catalogue: Catalogue) -> tuple[str, ...]:
    """What nodes call it, where it may be asked for by that name."""
    source = model.source
    return (
        (source,) if source and source != model.id and catalogue.by_alias.get(fold(source)) is model else ()
    )


def prices_of(catalogue: Catalogue) -> Callable[[str], Price | None]:
    """What a model's tokens cost, by any of its names; None where nobody said."""

    def price(name: str) -> Price | None:
        model = catalogue.by_id.get(name) or catalogue.by_alias.get(fold(name))
        if model is None or model.cost is None:
            return None
        return Price(round(model.cost.prompt * PER_TOKENS), round(model.cost.completion * PER_TOKENS))

    return price
