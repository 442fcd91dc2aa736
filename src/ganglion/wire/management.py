"""The management routes: loading, unloading and listing models.

Frames of `POST /models/load` with `accept: text/event-stream`, in order:
`event: progress` {"model", "status", "bytes_done", "bytes_total"} again and again, then one of
`event: loaded` {"status": "loaded", "model"} and `event: error` {"error": {…}}.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from ganglion.core.device_layout import MAX_WAYS, DeviceLayout, Executor, normalized_devices
from ganglion.core.engine import LoadOptions, LoadProgress, ModelState, Status
from ganglion.core.errors import GanglionError, UnsupportedParameter
from ganglion.wire.decode import decode
from ganglion.wire.fields import ModelName
from ganglion.wire.frame import Frame
from ganglion.wire.openai_errors import encode_error

_encode = msgspec.json.Encoder().encode

WayCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_WAYS)]


class LoadBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /models/load`."""

    model_id: ModelName
    engine: str | None = None
    quant: str | None = None
    context_length: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    devices: list[str | int] | None = None
    """The devices to use, by index."""
    tensor_parallel: WayCount | None = None
    """Devices that each layer is divided over."""
    pipeline_parallel: WayCount | None = None
    """Groups of devices that the layers are divided over."""
    data_parallel: WayCount | None = None
    """Copies of the model inside one engine."""
    executor: Executor | None = None
    """What runs the processes: `mp` on this machine, `ray` on a cluster."""
    pinned: bool | None = None
    harness: str | None = None
    """What others call an engine; refused by name, since `engine` says it here."""


class UnloadBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /models/unload`."""

    model_id: ModelName
    force: bool = False


class DownloadProgress(msgspec.Struct, frozen=True):
    """The progress of a download."""

    done: int
    total: int


class ManagedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `GET /models`."""

    id: str
    engine: str
    status: Status
    devices: tuple[str, ...]
    memory_mb: int
    context_length: int
    capabilities: tuple[str, ...]
    pinned: bool
    last_used: float | None
    aliases: tuple[str, ...]
    priority: int
    source: str
    download: DownloadProgress | None = None
    """While downloading."""
    error: str | None = None


class LoadResult(msgspec.Struct, frozen=True):
    """The answer to a load."""

    status: Status
    model: str


class ModelEndpoint(msgspec.Struct, frozen=True):
    """The routes on which a model answers."""

    url: str


class ModelCapabilities(msgspec.Struct, frozen=True):
    """The capabilities of a model."""

    capabilities: tuple[str, ...]


_load_body = msgspec.json.Decoder(LoadBody)
_unload_body = msgspec.json.Decoder(UnloadBody)


def parse_load(body: bytes) -> tuple[str, LoadOptions]:
    """The model that is asked for, and how."""
    fields = decode(_load_body, body)
    if fields.harness is not None:
        raise UnsupportedParameter(
            f"The harness {fields.harness[:64]!r} is not chosen here.",
            param="harness",
            hint="Name an engine with 'engine', or leave it out.",
        )
    options = LoadOptions(
        engine=fields.engine,
        quant=fields.quant,
        context_length=fields.context_length,
        is_pinned=fields.pinned,
        layout=DeviceLayout(
            tensor_parallel=fields.tensor_parallel,
            pipeline_parallel=fields.pipeline_parallel,
            data_parallel=fields.data_parallel,
            devices=None if fields.devices is None else normalized_devices(fields.devices),
            executor=fields.executor,
        ),
    )
    return fields.model_id, options


def parse_unload(body: bytes) -> tuple[str, bool]:
    """The model to let go, and whether its requests are cut short."""
    fields = decode(_unload_body, body)
    return fields.model_id, fields.force


def every(models: Iterable[ModelState]) -> bytes:
    """The body of `GET /models`."""
    return _encode([_managed(model) for model in models])


def loaded(progress: LoadProgress) -> bytes:
    """The body of a load that is over, or that goes on."""
    return _encode(LoadResult(progress.status, progress.model))


def unloaded(model: str) -> bytes:
    """The body of an unload."""
    return _encode(LoadResult("unloaded", model))


def endpoint(url: str) -> bytes:
    """The body of `GET /models/{id}/endpoint`."""
    return _encode(ModelEndpoint(url))


def capabilities(model: ModelState) -> bytes:
    """The body of `GET /models/{id}/capabilities`."""
    return _encode(ModelCapabilities(model.abilities))


def progress_frame(progress: LoadProgress) -> Frame:
    """One step of a load."""
    return Frame(_encode(progress), "progress")


def loaded_frame(progress: LoadProgress) -> Frame:
    """The good end of a load."""
    return Frame(loaded(progress), "loaded")


def error_frame(error: GanglionError) -> Frame:
    """The bad end of a load."""
    return Frame(encode_error(error), "error")


def _managed(model: ModelState) -> ManagedModel:
    is_downloading = model.status == "downloading"
    return ManagedModel(
        id=model.id,
        engine=model.engine,
        status=model.status,
        devices=model.devices,
        memory_mb=model.memory_mb,
        context_length=model.context_length,
        capabilities=model.abilities,
        pinned=model.is_pinned,
        last_used=model.last_used_s,
        aliases=model.aliases,
        priority=model.priority,
        source=model.source,
        download=DownloadProgress(model.bytes_done, model.bytes_total) if is_downloading else None,
        error=model.error,
    )
