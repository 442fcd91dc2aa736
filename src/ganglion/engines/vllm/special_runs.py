"""What vLLM is told besides where a model sees, is read out, or makes vectors and no text.

Law: hooks see every row of a pass, each once, in the process that reads it; what breaks that is refused by
name.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ganglion.core.attachments import MAX_ATTACHMENTS
from ganglion.core.errors import InvalidValue
from ganglion.core.model import ModelFacts

if TYPE_CHECKING:  # a worker reads plans and need not load how they are configured
    from ganglion.engines.settings import EngineSettings

POOLING_ARGUMENTS: Final[Mapping[str, Any]] = {
    "runner": "pooling",
    "enable_prefix_caching": None,  # encoders keep no KV, and vLLM fails where it is told to look for some
    "enable_chunked_prefill": None,
    "speculative_config": None,
}
PICTURE_LIMITS: Final[Mapping[str, Any]] = {"image": MAX_ATTACHMENTS, "video": 0, "audio": 0}
"""Files of each kind in one prompt."""
PICTURE_ARGUMENTS: Final[Mapping[str, Any]] = {
    "mm_processor_cache_gb": 0,  # the worker keeps what was processed, each tenant's apart
}
PICTURE_BYTES: Final = 256 * 2**20
"""What a worker keeps of processed pictures that no request waits for."""
CONCEPT_VARIABLES: Final[Mapping[str, str]] = {
    # The hooks know how this runner lays out its batches.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
}
_EXTENSION: Final = "ganglion.engines.vllm.worker.residual_hooks.ResidualExtension"
_SPLITTING: Final = ("enable_dbo", "prefill_context_parallel_size", "decode_context_parallel_size")
"""Arguments of vLLM that divide the rows of a pass over processes or threads."""


def served_facts(facts: ModelFacts) -> ModelFacts:
    """The facts of a model as vLLM runs it: what was made to embed or to rank does nothing else."""
    return replace(facts, capabilities=("embeddings",)) if "embeddings" in facts.capabilities else facts


def concept_arguments(context: int) -> dict[str, Any]:
    """What a model is loaded with whose residual stream is read and steered."""
    return {
        "worker_extension_cls": _EXTENSION,
        "enforce_eager": True,  # no hook is called inside a compiled graph
        # The last token of a full context is run as well, and vLLM wants room for one more behind it.
        "max_model_len": context + 1,
    }


def check_concepts(settings: "EngineSettings", facts: ModelFacts, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidValue for what readouts and steering do not go with."""
    own = settings.vllm
    if not facts.can_generate:
        raise _apart("concepts", "A model that makes vectors is not read out")
    if own.speculative is not None:
        raise _apart("vllm.speculative", "Guessed tokens have no readouts")
    if own.data_parallel > 1:
        raise _apart("vllm.data_parallel", "Readouts come from one copy of a model")
    if own.executor != "mp":
        raise _apart("vllm.executor", "Readouts come from the processes of one machine")
    for name in _SPLITTING:
        value = arguments.get(name)
        if value is True or (value and value != 1):  # True equals 1, and one process divides nothing
            raise _apart("vllm.extra", f"Readouts need whole passes, which {name} divides")


def _apart(key: str, why: str) -> InvalidValue:
    return InvalidValue(
        f"{why}: engine.{key} does not go with concept packs.",
        param=f"engine.{key}",
        hint="Leave out one of the two.",
    )
