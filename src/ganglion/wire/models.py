"""OpenAI's model list, with the capabilities and the status of each model."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from ganglion.core.engine import ModelState, Status

_encode = msgspec.json.Encoder().encode


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    context_length: int
    capabilities: tuple[str, ...]
    status: Status
    aliases: tuple[str, ...]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Every model that can be asked for."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


def one(model: ModelState) -> bytes:
    """The body of `GET /v1/models/{id}`."""
    return _encode(_card(model))


def every(models: Iterable[ModelState]) -> bytes:
    """The body of `GET /v1/models`."""
    return _encode(ModelList(data=tuple(_card(model) for model in models)))


def _card(model: ModelState) -> ModelCard:
    return ModelCard(
        id=model.id,
        created=model.created_s,
        owned_by="ganglion",
        context_length=model.context_length,
        capabilities=model.abilities,
        status=model.status,
        aliases=model.aliases,
    )
