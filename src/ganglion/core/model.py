"""A model as values: what its file says before any weight is read, and how busy its process is."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ganglion.core.sampling import Sampling

Pooling = Literal["none", "mean", "cls", "last", "rank"]


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """A file beside a model's own that turns pictures or sounds into rows of its embeddings."""

    path: str
    size_bytes: int
    kind: str
    sees: bool
    hears: bool
    width: int = 0
    """How many values a row has, 0 where the file does not say; the model's embeddings have as many."""

    @property
    def senses(self) -> tuple[str, ...]:
        """What it adds to a model's capabilities."""
        return (*(("vision",) if self.sees else ()), *(("audio",) if self.hears else ()))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's own description: enough to plan its memory, render its prompts and fill its defaults."""

    path: str
    size_bytes: int
    modified_s: int
    architecture: str
    name: str
    context_length: int
    block_count: int
    kv_values_per_token: int
    """Key and value elements that one token adds to the cache over all layers (times the element size)."""
    vocabulary_size: int
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    quantisation: str = ""
    parameters: int = 0
    """How many weights there are."""
    capabilities: tuple[str, ...] = ()
    """Of chat, tools, vision, embeddings, reasoning, completion: what the file itself gives away."""
    sampling: Sampling = Sampling()
    pooling: Pooling | None = None
    """How the vectors of an input's tokens become one, where the file says so."""
    embedding_length: int = 0
    """How wide the residual stream is, 0 where the file does not say."""
    block_bytes: tuple[int, ...] = ()
    """The bytes of each layer's weights, where the file says; the rest are embeddings and the output."""

    projector: ProjectorFacts | None = None
    """What it sees and hears with."""

    @property
    def can_generate(self) -> bool:
        """Whether it continues text; what only embeds does not."""
        return "completion" in self.capabilities or "embeddings" not in self.capabilities

    def kv_bytes(self, tokens: int, element_bytes: float) -> int:
        """The bytes that so many tokens take in a cache whose elements have this size."""
        return int(tokens * self.kv_values_per_token * element_bytes)

    def memory_bytes(self, tokens: int, element_bytes: float) -> int:
        """Weights and cache together; what an engine itself needs comes on top."""
        return self.size_bytes + self.kv_bytes(tokens, element_bytes)


class WorkerLoad(NamedTuple):
    """The load of the process behind a model; it travels whole from there to the metrics.

    A tuple, since it is in every frame of every step.
    """

    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    step_s: float = 0.0
    """Seconds spent on steps so far."""
    native_s: float = 0.0
    """Seconds of these inside the native library."""
