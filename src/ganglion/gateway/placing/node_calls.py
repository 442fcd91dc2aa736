"""Management calls to a node: load a model, unload one, and list which are busy."""

from typing import Final

import msgspec

from ganglion.core.errors import (
    EngineUnavailable,
    Extra,
    GanglionError,
    HubUnreachable,
    InsufficientMemory,
    InvalidValue,
    LoadFailed,
    ModelNotFound,
    UnsupportedParameter,
    UpstreamUnavailable,
    class_of,
    rebuild,
)
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import CatalogueModel
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse
from ganglion.gateway.upstream.node_headers import JSON_BODY, lease_headers
from ganglion.wire.health import ModelHealth
from ganglion.wire.management import LoadBody, LoadResult, UnloadBody

_LOAD_S: Final = 600.0
"""For a download and a load; the node reports its progress meanwhile."""
_UNLOAD_S: Final = 120.0
"""What runs is finished first, and what is evicted was idle a moment ago."""
_BUSY_S: Final = 5.0
_LIMIT: Final = 500
_RELAYED: Final = (LoadFailed, HubUnreachable, EngineUnavailable, InsufficientMemory)
"""Reasons against a load that are the model's or the machine's; anything else is the node's."""
_UNABLE: Final = (UnsupportedParameter, InvalidValue)
"""What it says of fields of the catalogue that its engines or its devices do not honour."""


class _NodeError(msgspec.Struct):
    message: str = ""
    code: str | None = None
    free_mb: int = 0
    required_mb: int = 0


class _Refusal(msgspec.Struct):
    error: _NodeError


class _Busy(msgspec.Struct):
    models: list[ModelHealth] = []


_refusal = msgspec.json.Decoder(_Refusal)
_loaded = msgspec.json.Decoder(LoadResult)
_busy = msgspec.json.Decoder(_Busy)


async def load(node_client: NodeClient, spec: NodeSpec, model: CatalogueModel, *, is_pinned: bool) -> str:
    """Load a model on a node, and return the node's own name for it; raises why it was not loaded."""
    layout = model.layout
    body = LoadBody(
        model_id=model.origin,
        engine=model.engine,
        quant=model.quant,
        context_length=model.context_length,
        pinned=True if is_pinned else None,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        data_parallel=layout.data_parallel,
        executor=layout.executor,
    )
    answer = await node_client.call(
        spec,
        "POST",
        "/models/load",
        headers=(JSON_BODY, *lease_headers(spec)),
        body=msgspec.json.encode(body),
        timeout_s=_LOAD_S,
    )
    _check(answer, spec, model.id)
    try:
        return _loaded.decode(answer.body).model
    except msgspec.MsgspecError:
        raise UpstreamUnavailable(f"The node {spec.name} gave no valid answer to a load.") from None


async def unload(node_client: NodeClient, spec: NodeSpec, replica: str) -> None:
    """Unload a model from a node once its requests are finished; one that is not loaded is no error."""
    body = msgspec.json.encode(UnloadBody(model_id=replica))
    answer = await node_client.call(
        spec,
        "POST",
        "/models/unload",
        headers=(JSON_BODY, *lease_headers(spec)),
        body=body,
        timeout_s=_UNLOAD_S,
    )
    if answer.status != 404:
        _check(answer, spec, replica)


async def busy(node_client: NodeClient, spec: NodeSpec) -> frozenset[str]:
    """The models that have requests on a node at this moment."""
    answer = await node_client.call(spec, "GET", "/health", timeout_s=_BUSY_S)
    _check(answer, spec, "")
    try:
        models = _busy.decode(answer.body).models
    except msgspec.MsgspecError:
        raise UpstreamUnavailable(f"The node {spec.name} gave no valid answer for its health.") from None
    return frozenset(model.id for model in models if model.in_flight or model.queued)


def _check(answer: NodeResponse, spec: NodeSpec, model: str) -> None:
    if 200 <= answer.status < 300:
        return
    try:
        detail = _refusal.decode(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        detail = _NodeError(f"it answered with status {answer.status}")
    raise _error(detail, spec, model)


def _error(detail: _NodeError, spec: NodeSpec, model: str) -> GanglionError:
    message = f"The node {spec.name} says: {detail.message[:_LIMIT]}"
    if detail.code == ModelNotFound.code:
        return ModelNotFound(model, hint=message)
    kind = class_of(detail.code or "") or UpstreamUnavailable
    if kind in _UNABLE:
        kind = EngineUnavailable
    extras: dict[str, Extra] = {"node": spec.name}
    if issubclass(kind, InsufficientMemory):
        extras = {"free_mb": detail.free_mb, "required_mb": detail.required_mb}
    return rebuild(kind if issubclass(kind, _RELAYED) else UpstreamUnavailable, message, extras=extras)
