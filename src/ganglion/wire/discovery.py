"""A node's description of itself: the body of `GET /discovery`."""

import msgspec
from msgspec import UNSET, UnsetType

from ganglion.core.machine import LibrarySource, Machine

_encode = msgspec.json.Encoder().encode


class Processor(msgspec.Struct, frozen=True):
    """The processor; `flags` are the instruction sets that matter to inference."""

    model: str
    architecture: str
    cores: int
    flags: list[str]


class DeviceFacts(msgspec.Struct, frozen=True):
    """One device; index -1 is the processor, listed where no accelerator can be used."""

    index: int
    name: str
    memory_total_mb: int
    compute_capability: str | None


class AcceleratorFacts(msgspec.Struct, frozen=True):
    """The library that drives the accelerators."""

    runtime: str
    driver: str


class EngineVersion(msgspec.Struct, frozen=True):
    """An engine that could be used; `accelerators` is null when its library does not say.

    `layout` names the fields of a load by which it lays a model over devices.
    """

    name: str
    version: str
    library: LibrarySource | None
    accelerators: list[str] | None
    layout: list[str]


class GrpcAddress(msgspec.Struct, frozen=True):
    """The address of token sessions."""

    host: str
    port: int


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /discovery`; `accelerator_unusable` is there only when something is wrong."""

    hostname: str
    os: str
    kernel: str
    cpu: Processor
    memory_total_mb: int
    devices: list[DeviceFacts]
    accelerator: AcceleratorFacts | None
    accelerator_unusable: str | UnsetType = UNSET
    engines: list[EngineVersion]
    version: str
    max_context: int | None
    """The longest sequence that a model of this node takes, in tokens; null without models."""
    grpc: GrpcAddress | None
    """Null where nothing listens for gRPC."""


def body(
    machine: Machine, *, version: str, max_context: int | None, grpc: GrpcAddress | None = None
) -> bytes:
    """The body of `GET /discovery`."""
    unusable = machine.accelerator_unusable
    return _encode(
        Discovery(
            hostname=machine.hostname,
            os=machine.os,
            kernel=machine.kernel,
            cpu=msgspec.convert(machine.cpu, Processor, from_attributes=True),
            memory_total_mb=machine.memory_total_mb,
            devices=msgspec.convert(machine.devices, list[DeviceFacts], from_attributes=True),
            accelerator=msgspec.convert(machine.accelerator, AcceleratorFacts | None, from_attributes=True),
            accelerator_unusable=UNSET if unusable is None else unusable,
            engines=msgspec.convert(machine.engines, list[EngineVersion], from_attributes=True),
            version=version,
            max_context=max_context,
            grpc=grpc,
        )
    )
