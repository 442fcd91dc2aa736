"""Decodes the state of a server that has no `/fleet/state`, from its models, health and discovery.

`GET /models`, `GET /health` and `GET /discovery` of any node of ours, and `GET /v1/models` of anybody: only
what a gateway wants of each, so that what else stands there may change. Law: these answers are not trusted; a
field that other servers may spell or type in their own way is left out where it makes no sense.
"""

from typing import Any

import msgspec
from msgspec import Struct

from ganglion.core.errors import InvalidValue
from ganglion.wire.decode import decode
from ganglion.wire.fleet import ReplicaState
from ganglion.wire.health import DeviceHealth, NodeStatus

_MAX_CONTEXT = 2**31
_CONTEXTS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""As vLLM, we and OpenRouter, Groq, Mistral name it."""


class PolledModel(Struct, frozen=True):
    """One model's load."""

    id: str
    in_flight: int = 0
    queued: int = 0


class PolledHealth(Struct, frozen=True, kw_only=True):
    """The parts of a node's health that a gateway reads."""

    status: NodeStatus
    uptime_s: float = 0.0
    devices: tuple[DeviceHealth, ...] = ()
    models: tuple[PolledModel, ...] = ()


class PolledGrpc(Struct, frozen=True):
    """The address of a node's token sessions."""

    host: str
    port: int


class PolledDiscovery(Struct, frozen=True, kw_only=True):
    """The parts of a node's discovery that a gateway reads."""

    version: str = ""
    grpc: PolledGrpc | None = None


class ListedModel(Struct, frozen=True):
    """One model of a server that is not ours; the context length is 0 where nobody says."""

    id: str
    aliases: tuple[str, ...] = ()
    context_length: int = 0
    created_s: int = 0


class _Listed(Struct):
    data: list[dict[str, Any]] | None  # null where Ollama has no model


_models = msgspec.json.Decoder(tuple[ReplicaState, ...])
_health = msgspec.json.Decoder(PolledHealth)
_discovery = msgspec.json.Decoder(PolledDiscovery)
_listed = msgspec.json.Decoder(_Listed)


def parse_models(body: bytes) -> tuple[ReplicaState, ...]:
    """`GET /models` of a node; raises InvalidRequest. Its entries are named as those of `/fleet/state`."""
    return decode(_models, body)


def parse_health(body: bytes) -> PolledHealth:
    """`GET /health` of a node; raises InvalidRequest."""
    return decode(_health, body)


def parse_discovery(body: bytes) -> PolledDiscovery:
    """`GET /discovery` of a node; raises InvalidRequest."""
    return decode(_discovery, body)


def parse_model_list(body: bytes) -> tuple[ListedModel, ...]:
    """`GET /v1/models` of any server; raises InvalidRequest where that is no list of models."""
    return tuple(_one(entry) for entry in decode(_listed, body).data or ())


def _one(entry: dict[str, Any]) -> ListedModel:
    name = entry.get("id")
    if not isinstance(name, str) or not name:
        raise InvalidValue("Invalid value for 'data': each model has an 'id'.", param="data")
    aliases = entry.get("aliases")
    if not isinstance(aliases, list):
        aliases = []
    return ListedModel(
        id=name,
        aliases=tuple(alias for alias in aliases if isinstance(alias, str) and alias),
        context_length=_context_length(entry),
        created_s=_count(entry.get("created"), 2**53),
    )


def _context_length(entry: dict[str, Any]) -> int:
    meta = entry.get("meta")
    # llama-server tells what it serves beside what the model was trained for, where it tells it at all.
    told = [meta.get("n_ctx")] if isinstance(meta, dict) else []
    told += [entry.get(name) for name in _CONTEXTS]
    told += [meta.get("n_ctx_train")] if isinstance(meta, dict) else []
    return next((length for value in told if (length := _count(value, _MAX_CONTEXT))), 0)


def _count(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value <= most else 0
