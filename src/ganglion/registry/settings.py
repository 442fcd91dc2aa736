"""The `[residency]` and `[hub]` sections of the configuration.

A field that its class docstring describes is a key of its section.
"""

from typing import Annotated

from msgspec import Meta, Struct


class ResidencySettings(Struct, frozen=True):
    """How many models are loaded, and for how long.

    auto_load: A request loads the model it names; off, it gets 404 for a model that is not loaded. Left
        out, on, and off for a node that joins a gateway, which decides what is loaded where.
    max_models: Models loaded at once; left out, as many as fit into memory.
    memory_mb: Memory of all loaded models together, in MiB; left out, what the machine has.
    keep_alive_s: Unload a model after so many seconds without a request; left out, it stays loaded.
    keep_kv_mb: Disk for the KV cache of unloaded models' prompts, in MiB, in the home folder's `cache/kv`;
        0 for none.
    """

    auto_load: bool | None = None
    max_models: Annotated[int, Meta(ge=1)] | None = None
    memory_mb: Annotated[int, Meta(ge=1)] | None = None
    keep_alive_s: Annotated[float, Meta(gt=0)] | None = None
    keep_kv_mb: Annotated[int, Meta(ge=0)] = 1024

    @property
    def memory_bytes(self) -> int | None:
        """The memory of all loaded models together; None leaves it to the machine."""
        return None if self.memory_mb is None else self.memory_mb * 2**20


class HubSettings(Struct, frozen=True):
    """Where models are downloaded from.

    endpoint: Address of the hub; left out, `HF_ENDPOINT`, else huggingface.co.
    download: Download a model named `org/repo[:quant]` that is not on this machine; off, the name is
        unknown.
    offline: Never contact the hub; use what is in its cache.
    """

    endpoint: str | None = None
    download: bool = True
    offline: bool = False
