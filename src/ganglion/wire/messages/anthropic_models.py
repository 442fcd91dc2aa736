"""The model list as Anthropic's SDKs read it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from ganglion.core.engine import ModelState

_encode = msgspec.json.Encoder().encode


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """Every model, on the only page."""

    data: tuple[ModelInfo, ...]
    has_more: bool = False
    first_id: str | None
    last_id: str | None


def one(model: ModelState) -> bytes:
    """The body of `GET /v1/models/{id}`."""
    return _encode(_info(model))


def every(models: Sequence[ModelState]) -> bytes:
    """The body of `GET /v1/models`."""
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return _encode(ModelPage(data=tuple(map(_info, models)), first_id=first, last_id=last))


def _info(model: ModelState) -> ModelInfo:
    return ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=datetime.fromtimestamp(model.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.context_length,
        max_tokens=model.context_length,
    )
