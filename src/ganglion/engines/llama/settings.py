"""What the operator asks of the llama engine; what is decided from it is the plan."""

from dataclasses import dataclass
from typing import Literal

from ganglion.engines.supervision.watchdog import WorkerLimits

KvType = Literal["f16", "q8_0", "q4_0"]


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """None means: decide from the model and the machine."""

    model_id: str
    aliases: tuple[str, ...] = ()
    threads: int | None = None
    context: int | None = None
    """The longest single sequence, in tokens."""
    kv_tokens: int | None = None
    """The pool that all sequences share, in tokens."""
    parallel: int = 64
    queue_limit: int = 256
    kv_type: KvType = "f16"
    gpu_layers: int = 0
    chat_template: str | None = None
    """A Jinja template that replaces the model's own."""
    kv_folder: str | None = None
    """Where hot prefixes are kept while the model is unloaded; None keeps none."""
    kv_folder_bytes: int = 2**30
    """How much may lie in that folder, over all models."""
    is_deterministic: bool = False
    """An answer does not depend on its neighbours; decoding is 20 to 30 % slower."""
    is_recast: bool = True
    """Weights may be held in another form of the same numbers, where that is faster."""
    concepts: tuple[str, ...] = ()
    """Concept packs to read out and to steer by, by the path of their vectors."""
    limits: WorkerLimits = WorkerLimits()
    """How long the worker may take for what, and how often it may die."""
