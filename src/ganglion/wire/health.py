"""A node's health: the body of `GET /health`.

Law: a model id stands in exactly one of the activation lists.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

import msgspec

from ganglion.core import engine
from ganglion.core.engine import ModelState, Status
from ganglion.core.machine import DeviceReading

_encode = msgspec.json.Encoder().encode

NodeStatus = Literal["ok", "loading", "degraded", "failed", "draining"]


class DeviceHealth(msgspec.Struct, frozen=True):
    """One device, as last read; index -1 is the processor, listed where no accelerator can be used."""

    index: int
    name: str
    memory_used_mb: int
    memory_free_mb: int
    utilization_pct: float | None
    temperature_c: float | None


class FailedActivation(msgspec.Struct, frozen=True):
    """A model that could not be made ready, and why."""

    model: str
    error: str


class ActivationHealth(msgspec.Struct, frozen=True):
    """The models that are being loaded, and those that are ready or failed."""

    state: Literal["pre_warming", "ready"]
    pending: list[str]
    in_progress: str | None
    completed: list[str]
    failed: list[FailedActivation]


class ModelHealth(msgspec.Struct, frozen=True):
    """One model's load."""

    id: str
    status: Status
    in_flight: int
    queued: int
    kv_used: int
    kv_total: int


class Health(msgspec.Struct, frozen=True):
    """The body of `GET /health`."""

    status: NodeStatus
    uptime_s: float
    devices: list[DeviceHealth]
    activation: ActivationHealth
    models: list[ModelHealth]


class ProbeBody(msgspec.Struct, frozen=True):
    """The body of the two probes for orchestrators."""

    status: NodeStatus


class Version(msgspec.Struct, frozen=True):
    """The body of `GET /version`."""

    version: str
    git_sha: str | None
    python: str
    libraries: dict[str, str]


def body(
    models: Sequence[ModelState],
    *,
    uptime_s: float,
    is_draining: bool,
    devices: Sequence[DeviceReading] = (),
    activation: engine.Activation | None = None,
) -> bytes:
    """The body of `GET /health`; without an account of the activation, the models' states give one."""
    return _encode(
        Health(
            status=node_status(models, is_draining=is_draining),
            uptime_s=round(uptime_s, 3),
            devices=msgspec.convert(devices, list[DeviceHealth], from_attributes=True),
            activation=derived_activation(models) if activation is None else _activation(activation),
            models=msgspec.convert(models, list[ModelHealth], from_attributes=True),
        )
    )


def probe(status: NodeStatus) -> bytes:
    """The body of `GET /health/live` and `GET /health/ready`."""
    return _encode(ProbeBody(status))


def version(value: Version) -> bytes:
    """The body of `GET /version`."""
    return _encode(value)


def node_status(models: Sequence[ModelState], *, is_draining: bool) -> NodeStatus:
    """The node in one word: `ok` and `degraded` answer requests, if need be by loading, the others do not."""
    if is_draining:
        return "draining"
    if not any(model.status == "loaded" or model.loads_on_request for model in models):
        is_over = bool(models) and all(model.status == "failed" for model in models)
        return "failed" if is_over else "loading"
    if any(model.status in ("failed", "recovering") for model in models):
        return "degraded"
    return "ok"


def derived_activation(models: Iterable[ModelState]) -> ActivationHealth:
    """Sort every model into the one list that says how far it is."""
    pending: list[str] = []
    completed: list[str] = []
    failed: list[FailedActivation] = []
    in_progress: str | None = None
    is_warming = False
    for model in models:
        match model.status:
            case "loading" | "downloading":
                is_warming = True
                if in_progress is None:
                    in_progress = model.id
                else:
                    pending.append(model.id)
            case "unloaded":
                pending.append(model.id)
            case "loaded" | "draining" | "recovering":
                completed.append(model.id)
            case "failed":
                failed.append(FailedActivation(model.id, model.error or "unknown"))
            case _:
                assert_never(model.status)
    return ActivationHealth("pre_warming" if is_warming else "ready", pending, in_progress, completed, failed)


def _activation(account: engine.Activation) -> ActivationHealth:
    return ActivationHealth(
        state="ready" if account.is_over else "pre_warming",
        pending=list(account.pending),
        in_progress=account.in_progress,
        completed=list(account.completed),
        failed=[FailedActivation(model, error) for model, error in account.failed],
    )
