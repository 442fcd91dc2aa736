"""The `steering` field: concepts that are added to a model's residual stream, or taken from it."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Steer, Steering

MAX_STEERS = 16
MAX_STRENGTH = 100
"""Far beyond what a model survives: at 1 its stream moves as far as the concept's examples lie apart."""
MAX_LAYERS = 256

_Layer = Annotated[int, Meta(ge=0, le=65535)]


class SteerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One concept, how strongly, and after which layers; left out, all that it has vectors for."""

    concept: Annotated[str, Meta(min_length=1, max_length=256)]
    strength: Annotated[float, Meta(ge=-MAX_STRENGTH, le=MAX_STRENGTH)]
    layers: (
        Annotated[
            list[_Layer],
            Meta(min_length=1, max_length=MAX_LAYERS, extra_json_schema={"uniqueItems": True}),
        ]
        | None
    ) = None


SteeringSpec = Annotated[list[SteerSpec], Meta(max_length=MAX_STEERS)]


def steering_of(specs: Sequence[SteerSpec]) -> Steering:
    """The steering that a body asks for; raises InvalidValue where a layer is named twice."""
    return tuple(_steer(place, each) for place, each in enumerate(specs))


def _steer(place: int, spec: SteerSpec) -> Steer:
    layers = spec.layers
    if layers is not None and len(set(layers)) < len(layers):
        raise InvalidValue(
            f"'steering[{place}].layers' names a layer twice.", param=f"steering[{place}].layers"
        )
    return Steer(spec.concept, spec.strength, None if layers is None else tuple(layers))
