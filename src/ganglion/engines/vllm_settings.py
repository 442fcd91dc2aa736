"""The `[engine.vllm]` section of the configuration: what only vLLM can be told."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class VllmSettings(Struct, frozen=True):
    """How vLLM runs a model; None leaves the choice to vLLM.

    python: The Python of the environment that vLLM is installed in; left out, `GANGLION_VLLM_PYTHON`, else
        the one that `ganglion engines install vllm` made.
    dtype: The type that weights are computed in.
    quantization: The method that the weights are quantised with, where the checkpoint does not say.
    gpu_memory_share: The share of each GPU's memory that it may take, weights and KV cache together.
    kv_dtype: The element type of the KV cache.
    kv_cache_gb: The KV cache on a processor, in GiB.
    chunked_prefill: Whether long prompts are read in parts, beside the steps of others.
    eager: Run without compiled graphs: a quicker start, a slower answer. Readouts and steering need it.
    speculative: How tokens are guessed ahead, as JSON in vLLM's own words.
    attention_backend: The attention kernels, by vLLM's name.
    tensor_parallel: GPUs that each layer is divided over.
    pipeline_parallel: Groups of GPUs that the layers are divided over.
    data_parallel: Copies of the model inside one engine; a gateway over several nodes does it with affinity.
    devices: The GPUs that models may be put on, by index; left out, all that are visible. Each model takes
        the freest of them.
    executor: How the processes of several GPUs are run: `mp` on this machine, `ray` on a Ray cluster.
    trust_remote_code: Run Python code that comes with a checkpoint. It can do whatever this user can.
    extra: Any other argument of vLLM's engine, as JSON; vLLM checks it.
    """

    python: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    gpu_memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    kv_dtype: str = "auto"
    kv_cache_gb: Annotated[int, Meta(ge=1)] | None = None
    chunked_prefill: bool | None = None
    eager: bool = False
    speculative: str | None = None
    attention_backend: str | None = None
    tensor_parallel: Annotated[int, Meta(ge=1)] = 1
    pipeline_parallel: Annotated[int, Meta(ge=1)] = 1
    data_parallel: Annotated[int, Meta(ge=1)] = 1
    devices: tuple[str, ...] = ()
    executor: Literal["mp", "ray"] = "mp"
    trust_remote_code: bool = False
    extra: str | None = None
