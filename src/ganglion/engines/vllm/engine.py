"""vLLM as an Engine: chat, vectors and token sessions over a worker in vLLM's own environment."""

from ganglion.core.engine import ManagedEngine
from ganglion.core.model import ModelFacts


def build_vllm(
    facts: ModelFacts | None, settings: object, *, free_memory: int | None, free_video_memory: int | None
) -> ManagedEngine:
    """The engine of one checkpoint."""
    raise NotImplementedError
