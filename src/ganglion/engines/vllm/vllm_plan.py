"""Plans a vLLM worker from the settings: the arguments of its engine, its environment and its memory.

Law: a worker is told everything in vLLM's own words, and vLLM checks them. What the settings have a key for
comes from that key alone: `extra` may name anything else.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ganglion.core.errors import InsufficientMemory, InsufficientVideoMemory, InvalidValue
from ganglion.core.model import ModelFacts
from ganglion.engines.vllm.special_runs import (
    CONCEPT_VARIABLES,
    PICTURE_ARGUMENTS,
    PICTURE_BYTES,
    PICTURE_LIMITS,
    POOLING_ARGUMENTS,
    check_concepts,
    concept_arguments,
)

if TYPE_CHECKING:  # a worker reads plans and need not load how they are configured
    from ganglion.engines.settings import EngineSettings

_DEFAULT_CONTEXT: Final = 8192
_DEFAULT_EXTRA: Final = 8192
"""Tokens of KV cache on a processor besides one full context, where nobody says how many."""
_KV_BYTES: Final = 2.0
_OVERHEAD_BYTES: Final = 1536 * 2**20
"""What the worker's processes hold besides weights and cache: interpreters, libraries, compute buffers."""
_LEAST_KV_BYTES: Final = 256 * 2**20
_ANY_LOGPROBS: Final = -1
"""The wires bound how many alternatives a request may ask for."""

_DEFAULTS: Final[Mapping[str, str]] = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is data
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",  # what a model needs is in its folder: a worker asks no hub
    "TOKENIZERS_PARALLELISM": "false",
    "GOMP_SPINCOUNT": "1000",  # threads that spin at a barrier for long wait for a busy neighbour's core
}
"""The environment of a worker where the operator's says nothing else."""
_FORCED: Final[Mapping[str, str]] = {
    # A forked process would hold the server's socket open, and this one has threads.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_DEVICE_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@dataclass(frozen=True, slots=True)
class VllmPlan:
    """What a worker is started with."""

    arguments: dict[str, Any]
    """Of vLLM's engine, as JSON."""
    context: int
    parallel: int
    processor_kv_bytes: int
    """The KV cache where vLLM computes on the processor and `arguments` do not say."""
    required_bytes: int
    """Of the machine's memory, without the GPUs'."""
    concepts: tuple[str, ...] = ()
    """Files of the concept packs that are read out and steered by."""
    environment: dict[str, str] = field(default_factory=dict)
    bos_token: str = ""
    """The sign that begins a text, where the checkpoint has one."""
    sees: bool = False
    """Whether it reads pictures."""
    folder: str = ""
    """A place for files of the worker's own; whoever starts it removes them."""


def context_of(chosen: int | None, trained: int) -> int:
    """The longest single sequence; what was trained is 0 where a family takes it for granted."""
    return chosen or min(trained or _DEFAULT_CONTEXT, _DEFAULT_CONTEXT)


def plan(
    settings: "EngineSettings",
    facts: ModelFacts,
    *,
    free_bytes: int,
    free_video_bytes: int | None = None,
    on_processor: bool,
    variables: Mapping[str, str],
) -> VllmPlan:
    """Decide; raises InvalidValue for settings that vLLM cannot honour, and InsufficientMemory."""
    check_settings(settings)
    own = settings.vllm
    context = context_of(settings.context, facts.context_length)
    kv_bytes = _kv_bytes(settings, facts, context)
    arguments = {**_arguments(settings, facts, context), **_extra(own.extra)}
    variables_of_concepts: dict[str, str] = {}
    if settings.concepts:
        check_concepts(settings, facts, arguments)
        arguments.update(concept_arguments(context))
        variables_of_concepts = dict(CONCEPT_VARIABLES)
    if not facts.can_generate:
        arguments.update(POOLING_ARGUMENTS, max_model_len=settings.context)
    sees = "vision" in facts.capabilities and facts.can_generate
    if sees:
        most = {**PICTURE_LIMITS, **(arguments.get("limit_mm_per_prompt") or {})}
        arguments.update(PICTURE_ARGUMENTS, limit_mm_per_prompt=most)
    if settings.kv_tokens is not None or own.kv_cache_gb is not None:
        arguments["kv_cache_memory_bytes"] = kv_bytes
    required = _OVERHEAD_BYTES + (facts.size_bytes + kv_bytes if on_processor else 0)
    required += PICTURE_BYTES if sees else 0
    _check_memory(settings.model_id, required, free_bytes)
    is_here = not on_processor and own.executor != "ray"  # else most of it lies on other machines
    if is_here and free_video_bytes is not None and free_video_bytes < facts.size_bytes:
        raise InsufficientVideoMemory(
            f"The weights of {settings.model_id!r} take {facts.size_bytes >> 20} MiB of GPU memory and "
            f"{free_video_bytes >> 20} MiB are free.",
            free_mb=free_video_bytes >> 20,
            required_mb=facts.size_bytes >> 20,
            hint="Use more GPUs, a quantised checkpoint, or unload another model.",
        )
    return VllmPlan(
        arguments,
        context=context,
        parallel=settings.parallel,
        processor_kv_bytes=kv_bytes,
        required_bytes=required,
        concepts=settings.concepts,
        sees=sees and not _is_for_text_alone(arguments),
        environment=_environment(settings, variables) | variables_of_concepts,
        bos_token=facts.bos_token,
    )


def _is_for_text_alone(arguments: Mapping[str, Any]) -> bool:
    """Whether the settings leave out what reads pictures."""
    most = arguments["limit_mm_per_prompt"]["image"]
    count = most.get("count", 1) if isinstance(most, dict) else most
    return count == 0 or bool(arguments.get("language_model_only"))


def _check_memory(model_id: str, required: int, free_bytes: int) -> None:
    if free_bytes < required:
        raise InsufficientMemory(
            f"The model {model_id!r} needs about {required >> 20} MiB of memory with vLLM and "
            f"{free_bytes >> 20} MiB are free.",
            free_mb=free_bytes >> 20,
            required_mb=required >> 20,
            hint="Lower engine.context or engine.vllm.kv_cache_gb, or unload another model.",
        )


def check_settings(settings: "EngineSettings") -> None:
    """Raise InvalidValue for settings of other engines that cannot be honoured here."""
    if settings.is_deterministic:
        raise _not_here("deterministic", "vLLM's batches depend on what else is running")
    if settings.kv_type != "f16":
        raise _not_here("kv_type", "vLLM names its types itself", "Set engine.vllm.kv_dtype.")
    if settings.gpu_layers:
        raise _not_here("gpu_layers", "vLLM holds all layers on its GPUs", "Set engine.vllm.devices.")


def _not_here(key: str, why: str, hint: str = "Leave it out, or choose another engine.") -> InvalidValue:
    return InvalidValue(f"engine.{key} does not go with vLLM: {why}.", param=f"engine.{key}", hint=hint)


def _kv_bytes(settings: "EngineSettings", facts: ModelFacts, context: int) -> int:
    if settings.vllm.kv_cache_gb is not None:
        return settings.vllm.kv_cache_gb * 2**30
    tokens = settings.kv_tokens or context + _DEFAULT_EXTRA
    return max(facts.kv_bytes(max(tokens, context), _KV_BYTES), _LEAST_KV_BYTES)


def _arguments(settings: "EngineSettings", facts: ModelFacts, context: int) -> dict[str, Any]:
    own = settings.vllm
    path = Path(facts.path)
    arguments: dict[str, Any] = {
        "model": str(path if path.is_dir() else path.parent),
        "served_model_name": settings.model_id,
        "max_model_len": context,
        "max_num_seqs": settings.parallel,
        "dtype": own.dtype,
        "quantization": own.quantization,
        "gpu_memory_utilization": own.gpu_memory_share,
        "kv_cache_dtype": own.kv_dtype,
        "enable_chunked_prefill": own.chunked_prefill,
        "enforce_eager": own.eager,
        "speculative_config": _json("speculative", own.speculative),
        "attention_backend": own.attention_backend,
        "tensor_parallel_size": own.tensor_parallel,
        "pipeline_parallel_size": own.pipeline_parallel,
        "data_parallel_size": own.data_parallel,
        "trust_remote_code": own.trust_remote_code,
        "scheduling_policy": "priority",
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": _ANY_LOGPROBS,
        "enable_prefix_caching": True,
        "structured_outputs_config": {"backend": "guidance"},
        "disable_log_stats": True,
    }
    if own.executor != "mp" or own.tensor_parallel * own.pipeline_parallel > 1:
        arguments["distributed_executor_backend"] = own.executor
    return arguments


_OWN_KEYS: Final[Mapping[str, str]] = {
    "model": "the model's name",
    "tokenizer": "the model's name",
    "served_model_name": "the model's name",
    "max_model_len": "engine.context",
    "max_num_seqs": "engine.parallel",
    "kv_cache_memory_bytes": "engine.kv_tokens",
    "dtype": "engine.vllm.dtype",
    "quantization": "engine.vllm.quantization",
    "gpu_memory_utilization": "engine.vllm.gpu_memory_share",
    "kv_cache_dtype": "engine.vllm.kv_dtype",
    "enable_chunked_prefill": "engine.vllm.chunked_prefill",
    "enforce_eager": "engine.vllm.eager",
    "speculative_config": "engine.vllm.speculative",
    "attention_backend": "engine.vllm.attention_backend",
    "tensor_parallel_size": "engine.vllm.tensor_parallel",
    "pipeline_parallel_size": "engine.vllm.pipeline_parallel",
    "data_parallel_size": "engine.vllm.data_parallel",
    "distributed_executor_backend": "engine.vllm.executor",
    "device_ids": "engine.vllm.devices",
    "trust_remote_code": "engine.vllm.trust_remote_code",
    "scheduling_policy": "requests, whose priorities need it",
    "logprobs_mode": "requests, whose logprobs need it",
    "max_logprobs": "requests, whose logprobs need it",
    "structured_outputs_config": "requests, whose formats need it",
    "skip_tokenizer_init": "requests, whose formats need it",
    "disable_log_stats": "the watchdog, which needs it",
    "mm_processor_cache_gb": "the engine, which keeps pictures itself",
    "worker_extension_cls": "the engine, which has one of its own",
}
"""Arguments that `extra` may not name, and what they are left to."""


def _extra(written: str | None) -> dict[str, Any]:
    extra = _json("extra", written) or {}
    for name in extra:
        if name in _OWN_KEYS:
            raise InvalidValue(
                f"engine.vllm.extra sets {name!r}, which is left to {_OWN_KEYS[name]}.",
                param="engine.vllm.extra",
                hint="Take it out of there.",
            )
    return extra


def _json(key: str, written: str | None) -> dict[str, Any] | None:
    if written is None:
        return None
    try:
        return msgspec.json.decode(written, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidValue(
            f"engine.vllm.{key} is no JSON object: {error}.",
            param=f"engine.vllm.{key}",
            hint="""Write it as in '{"seed": 7}'.""",
        ) from error


def _environment(settings: "EngineSettings", variables: Mapping[str, str]) -> dict[str, str]:
    own = settings.vllm
    found = {name: value for name, value in _DEFAULTS.items() if name not in variables}
    found.update(_FORCED)
    if own.devices:
        found.update(dict.fromkeys(_DEVICE_VARIABLES, ",".join(own.devices)))
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver counts them, who was asked what is free
    if settings.threads is not None:
        found.update(OMP_NUM_THREADS=str(settings.threads), VLLM_CPU_OMP_THREADS_BIND="nobind")
    return found


def python_path(folder: str, variables: Mapping[str, str]) -> str:
    """The value of PYTHONPATH with a folder that holds our package and nothing else."""
    written = variables.get("PYTHONPATH")
    return folder if not written else f"{folder}{os.pathsep}{written}"
