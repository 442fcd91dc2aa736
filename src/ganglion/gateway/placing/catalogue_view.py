"""The catalogue in the forms that answers need; replaced as a whole when it is read again."""

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce

from ganglion.core.engine import ModelState
from ganglion.gateway.access.price import PER_TOKENS, TokenPrice
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.registry.naming.names import fold

_PRICES = 1024
"""Names whose price is remembered: each answer asks for one."""


class CatalogueView:
    """Models, listing and prices of the catalogue that is in force now."""

    def __init__(self, catalogue: FleetCatalogue) -> None:
        self.replace(catalogue)

    def replace(self, catalogue: FleetCatalogue) -> None:
        """Use another catalogue from now on."""
        self.promised = frozenset(model.id for model in catalogue.models)
        self.listed = listing_of(catalogue)
        self._price = _prices_of(catalogue)

    def price(self, name: str) -> TokenPrice | None:
        """What a model's tokens cost, by any of its names; None where it has no price."""
        return self._price(name)

    def dearest(self, names: Iterable[str]) -> TokenPrice | None:
        """The most that tokens may cost, whichever of these answers; None where none of them costs."""
        prices = [price for price in map(self._price, names) if price is not None]
        return reduce(TokenPrice.or_more, prices) if prices else None


def listing_of(catalogue: FleetCatalogue) -> tuple[ModelState, ...]:
    """The catalogue's models for the list of models, as not loaded."""
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


def _source_of(model: CatalogueModel, catalogue: FleetCatalogue) -> tuple[str, ...]:
    """The name of its source, where clients may use it."""
    source = model.source
    return (
        (source,) if source and source != model.id and catalogue.by_alias.get(fold(source)) is model else ()
    )


def _prices_of(catalogue: FleetCatalogue) -> Callable[[str], TokenPrice | None]:
    @lru_cache(maxsize=_PRICES)
    def price(name: str) -> TokenPrice | None:
        model = catalogue.by_id.get(name) or catalogue.by_alias.get(fold(name))
        if model is None or model.cost is None:
            return None
        return TokenPrice(round(model.cost.prompt * PER_TOKENS), round(model.cost.completion * PER_TOKENS))

    return price
