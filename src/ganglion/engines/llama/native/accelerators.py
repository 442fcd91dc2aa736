"""The accelerators that the loaded library knows, whatever drives them, and what a model takes of them."""

from typing import Any, Final

from ganglion.core.errors import GanglionError, InsufficientVideoMemory
from ganglion.engines.llama.native.library import Library
from ganglion.engines.llama.native.probe import DeviceKind, LibraryDevice, accelerators_among
from ganglion.engines.llama.plan import EnginePlan

_KINDS: Final[tuple[DeviceKind, ...]] = ("cpu", "gpu", "igpu", "accel", "meta")
_MOST_DEVICES: Final = 64


def accelerators(library: Library) -> tuple[LibraryDevice, ...]:
    """The devices beside the processor that take layers, as they are now."""
    return accelerators_among(library_devices(library))


def library_devices(library: Library) -> tuple[LibraryDevice, ...]:
    """Everything that the library can compute on, as it is now."""
    lib = library.lib
    count = min(lib.ggml_backend_dev_count(), _MOST_DEVICES)
    return tuple(_described(library, lib.ggml_backend_dev_get(number)) for number in range(count))


def _described(library: Library, device: Any) -> LibraryDevice:
    ffi, lib = library.ffi, library.lib
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(device, free, total)
    name, description = (
        ffi.string(text).decode("utf-8", "replace")
        for text in (lib.ggml_backend_dev_name(device), lib.ggml_backend_dev_description(device))
    )
    kind = lib.ggml_backend_dev_type(device)
    known: DeviceKind = _KINDS[kind] if 0 <= kind < len(_KINDS) else "unknown"
    return LibraryDevice(name, description, known, int(free[0]), int(total[0]))


def placement(plan: EnginePlan, before: tuple[LibraryDevice, ...], after: tuple[LibraryDevice, ...]) -> str:
    """One line on where the layers went, for the log; empty where there is no accelerator to speak of.

    As in: 33 of 33 layers on CUDA0 (H200), 15.2 GiB of 139.8 GiB
    """
    if not after or not plan.gpu_layers:
        return ""
    layers = f"{min(plan.gpu_layers, plan.layer_count)} of {plan.layer_count} layers on "
    free = {device.name: device.free_bytes for device in before}
    shares = [(device, max(free.get(device.name, 0) - device.free_bytes, 0)) for device in after]
    taken = [share for share in shares if share[1]] or shares[:1]
    return layers + " and ".join(_taken_of(device, used) for device, used in taken)


def _taken_of(device: LibraryDevice, used_bytes: int) -> str:
    used, total = used_bytes / 2**30, device.total_bytes / 2**30
    return f"{device.name} ({device.description}), {used:.1f} GiB of {total:.1f} GiB"


def refusal(plan: EnginePlan, error: GanglionError, before: tuple[LibraryDevice, ...]) -> GanglionError:
    """Why a model could not be placed: where the plan was too large for what was free, that is the reason."""
    free = sum(device.free_bytes for device in before)
    if not plan.is_accelerated or not before or not _is_about_memory(error.message):
        return error
    return InsufficientVideoMemory(
        f"{plan.path} did not fit into video memory: {error.message}",
        free_mb=free >> 20,
        required_mb=max(plan.video_bytes, free) >> 20,
        hint="Lower --gpu-layers, --kv-tokens or --context, or unload another model.",
    )


def _is_about_memory(message: str) -> bool:
    return any(sign in message.lower() for sign in ("memory", "alloc", "buffer"))
