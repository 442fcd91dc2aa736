"""The models that a fleet may hold, as the operator writes them down in `models.toml`. Pure.

Law: whatever is not understood is an error that names where it stands and what it could have been.
"""

import difflib
import graphlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ganglion.core.device_layout import MAX_DEVICES, DeviceLayout, Executor
from ganglion.core.errors import InvalidValue, UnknownParameter
from ganglion.core.request import LEAST_URGENT, MOST_URGENT
from ganglion.registry.naming.names import NAME_LIMIT, fold

_MAX_MODELS: Final = 10_000
CATCH_ALL: Final = "*"

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=100)]
_Megabytes = Annotated[int, Meta(ge=0, le=2**31)]
_WayCount = Annotated[int, Meta(ge=1, le=MAX_DEVICES)]
_Count = Annotated[int, Meta(ge=0, le=1000)]
_PricePerMillion = Annotated[float, Meta(ge=0, le=1e9)]


class Cost(Struct, frozen=True, forbid_unknown_fields=True):
    """What a million tokens are charged, in whatever unit budgets are kept in."""

    prompt: _PricePerMillion = 0.0
    completion: _PricePerMillion = 0.0


class CatalogueModel(Struct, frozen=True, kw_only=True):
    """One `[[models]]` of the file."""

    id: _Name
    """Under which clients ask for it."""
    source: _Name = ""
    """What a node is asked to load: a hub id `org/repo[:quant]` or a name that the nodes know; left out,
    the id."""
    served_as: _Name | None = None
    """What nodes list it as, where that is neither its id nor its source; learned from a load otherwise."""
    loadable: bool = True
    """Whether nodes may be asked to load it; false for what only a foreign server has."""
    engine: _Name | None = None
    """Which engine runs it; left out, the node decides."""
    quant: _Name | None = None
    """Quantisation, as Q8_0, where the source does not name it."""
    context_length: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    """Longest single sequence, in tokens; left out, the node decides."""
    memory_mb: _Megabytes = 0
    """What it takes, in MiB; 0 for what a node that holds it reports, else unknown."""
    devices: Annotated[int, Meta(ge=1, le=64)] = 1
    """Over how many devices of one node it may be split, wherever there is room on each."""
    tensor_parallel: _WayCount = 1
    """Devices of one node that each layer is divided over; each takes an equal part."""
    pipeline_parallel: _WayCount = 1
    """Groups of devices of one node that the layers are divided over."""
    data_parallel: _WayCount = 1
    """Copies inside the engine of one node; `max_replicas` puts copies on nodes of their own."""
    executor: Executor = "mp"
    """What runs the parts: `mp` on one node, `ray` on a cluster behind the node, which must be pinned."""
    device_mb: _Megabytes = 0
    """What it takes on each device, in MiB, in place of memory_mb."""
    min_free_mb: _Megabytes = 0
    """What must stay free on each device that it is put on, in MiB."""
    pinned_on: _Names = ()
    """Nodes that always hold it; it is never evicted there."""
    priority: Annotated[int, Meta(ge=MOST_URGENT, le=LEAST_URGENT)] = 0
    """Lower is more urgent: it evicts only idle models whose number is equal or higher."""
    min_replicas: _Count = 0
    """Nodes that hold it even when nobody asks; with 0 it is loaded for the first request."""
    max_replicas: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Nodes that hold it at most; left out, as many as the two keys above ask for, at least one."""
    scale_up_queue: Annotated[float, Meta(gt=0, le=1e6)] = 4.0
    """Waiting requests for each replica from which on another replica is loaded."""
    idle_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """A replica that nobody used for so many seconds goes, down to `min_replicas`; left out, it stays until
    its memory is needed."""
    max_in_flight: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Requests that one replica may have running and waiting before others are refused; left out, the
    node decides."""
    cost: Cost = Cost()
    """`prompt` and `completion`: what a million tokens of each are charged against budgets."""
    aliases: _Names = ()
    """Other names, in any case; `*` catches every name that nobody knows."""
    fallbacks: _Names = ()
    """Ids of models that answer in its place when it cannot be served, in order."""

    @property
    def layout(self) -> DeviceLayout:
        """What a node is told of the devices; nothing where one device does."""
        asked = DeviceLayout(
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            data_parallel=self.data_parallel,
            executor=self.executor,
        )
        return DeviceLayout(**{name: getattr(asked, name) for name in asked.demands})

    @property
    def is_clustered(self) -> bool:
        """Whether it lies on other machines than the node lists."""
        return self.executor == "ray"

    @property
    def origin(self) -> str:
        """What a node is asked to load."""
        return self.source or self.id

    @property
    def most_replicas(self) -> int:
        """How many nodes may hold it."""
        return self.max_replicas or max(1, self.min_replicas, len(self.pinned_on))

    @property
    def listed_as(self) -> frozenset[str]:
        """The names, folded, under which a node may list it."""
        quantised = f"{self.origin}:{self.quant}" if self.quant else self.origin
        return frozenset(map(fold, (self.id, self.origin, quantised, self.served_as or self.id)))


@dataclass(frozen=True, slots=True)
class FleetCatalogue:
    """All models, and the names by which they are found."""

    models: tuple[CatalogueModel, ...] = ()
    by_id: Mapping[str, CatalogueModel] = field(init=False)
    by_alias: Mapping[str, CatalogueModel] = field(init=False)
    """Folded; a source that only one model has is a name for it too."""
    by_listing: Mapping[str, tuple[CatalogueModel, ...]] = field(init=False)
    """By the folded names under which nodes may list them."""

    def __post_init__(self) -> None:
        listings: dict[str, tuple[CatalogueModel, ...]] = {}
        for model in self.models:
            for name in model.listed_as:
                listings[name] = (*listings.get(name, ()), model)
        aliases = {name: owners[0] for name, owners in listings.items() if len(owners) == 1}
        for model in self.models:
            aliases.pop(fold(model.id), None)  # an id is exact
        aliases |= {fold(alias): model for model in self.models for alias in model.aliases}
        object.__setattr__(self, "by_id", {model.id: model for model in self.models})
        object.__setattr__(self, "by_alias", aliases)
        object.__setattr__(self, "by_listing", listings)


EMPTY_CATALOGUE: Final = FleetCatalogue()


def parse_catalogue(text: str, file: str = "models.toml") -> FleetCatalogue:
    """Parse the text of a file; raises InvalidValue, UnknownParameter. `file` is for messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{file} is not TOML: {error}.") from None
    for key in table:
        if key != "models":
            raise UnknownParameter(
                f"Unknown key {key} in {file}.", param=key, hint="Each model stands under [[models]]."
            )
    entries = table.get("models", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidValue(
            f"models in {file} is not a list of tables.", hint="Each model stands under [[models]]."
        )
    if len(entries) > _MAX_MODELS:
        raise InvalidValue(f"{file} has {len(entries)} models; at most {_MAX_MODELS} are read.")
    models = tuple(_model(entry, number, file) for number, entry in enumerate(entries, 1))
    _check_names(models, file)
    _check_fallbacks(models, file)
    return FleetCatalogue(models)


def _model(entry: dict[str, Any], number: int, file: str) -> CatalogueModel:
    which = repr(entry["id"]) if isinstance(entry.get("id"), str) else str(number)
    where = f"model {which} of {file}"
    _check_keys(entry, CatalogueModel.__struct_fields__, "", where)
    if isinstance(entry.get("cost"), dict):
        _check_keys(entry["cost"], Cost.__struct_fields__, "cost.", where)
    try:
        model = msgspec.convert(entry, CatalogueModel)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"{where[0].upper()}{where[1:]} has a wrong value: {error}.") from None
    if model.min_replicas > model.most_replicas:
        raise InvalidValue(
            f"min_replicas in {where} is {model.min_replicas}, and max_replicas {model.max_replicas}.",
            param="min_replicas",
        )
    if len(set(model.pinned_on)) > model.most_replicas:
        raise InvalidValue(
            f"pinned_on in {where} names {len(model.pinned_on)} nodes, "
            f"and max_replicas is {model.max_replicas}.",
            param="pinned_on",
        )
    _check_layout(model, where)
    return model


def _check_layout(model: CatalogueModel, where: str) -> None:
    if model.device_mb and model.memory_mb:
        raise InvalidValue(f"{where} has both device_mb and memory_mb, expected one.", param="device_mb")
    if model.layout.demands and model.devices > 1:
        raise InvalidValue(
            f"{where} has devices = {model.devices} and {model.layout.demands[0]}, expected one of them.",
            param="devices",
            hint="devices lets a node split a model as it likes; the others divide it into equal parts.",
        )
    if not model.is_clustered and model.layout.ranks > MAX_DEVICES:
        raise InvalidValue(
            f"{where} takes {model.layout.ranks} devices; a node has at most {MAX_DEVICES}.",
            param=model.layout.largest(),
        )
    if model.is_clustered and not model.pinned_on:
        raise InvalidValue(
            f"{where} has the executor 'ray' and no pinned_on.",
            param="executor",
            hint="What lies behind a node is known to nobody else: name the nodes that have a Ray cluster.",
        )


def _check_keys(table: Iterable[str], known: tuple[str, ...], prefix: str, where: str) -> None:
    for key in table:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"Did you mean {prefix}{nearest[0]}?" if nearest else f"There are: {', '.join(known)}."
            named = f"{prefix}{key}"
            raise UnknownParameter(f"Unknown key {named} in {where}.", param=named, hint=hint)


def _check_names(models: tuple[CatalogueModel, ...], file: str) -> None:
    taken: dict[str, str] = {}
    for model in models:
        if model.id in taken:
            raise InvalidValue(f"Two models of {file} have the id {model.id!r}.", param="id")
        taken[model.id] = model.id
    ids = {fold(model.id): model.id for model in models}
    aliases: dict[str, str] = {}
    for model in models:
        for alias in model.aliases:
            owner = aliases.get(fold(alias)) or ids.get(fold(alias))
            if owner is not None:
                raise InvalidValue(
                    f"The alias {alias!r} of model {model.id!r} in {file} is already a name of {owner!r}.",
                    param="aliases",
                )
            aliases[fold(alias)] = model.id


def _check_fallbacks(models: tuple[CatalogueModel, ...], file: str) -> None:
    by_id = {model.id: model for model in models}
    for model in models:
        for fallback in model.fallbacks:
            if fallback not in by_id:
                nearest = difflib.get_close_matches(fallback, by_id, n=1, cutoff=0.5)
                raise InvalidValue(
                    f"The fallback {fallback!r} of model {model.id!r} in {file} is not a model of it.",
                    param="fallbacks",
                    hint=f"Did you mean {nearest[0]}?" if nearest else "A fallback is named by its id.",
                )
    try:
        graphlib.TopologicalSorter({model.id: model.fallbacks for model in models}).prepare()
    except graphlib.CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise InvalidValue(f"The fallbacks in {file} go in a circle: {circle}.", param="fallbacks") from None
