"""llama.cpp as an Engine: chat and vectors over the tokens of one model, inside the model's limits.

Law: data flows one way. The engine knows its tokens and the embedder, and neither of them knows this.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ganglion.core.engine import Embedded, EmbedRequest, ModelState, Ranked, RankRequest
from ganglion.core.errors import GanglionError, InsufficientMemory
from ganglion.core.model import ModelFacts
from ganglion.engines.embedder import WorkerEmbedder
from ganglion.engines.images.decoder import ImageDecoder
from ganglion.engines.llama.faults import InjectedFault
from ganglion.engines.llama.plan import EnginePlan, plan
from ganglion.engines.llama.tokens import worker_tokens
from ganglion.engines.resources import free_bytes, usable_cores
from ganglion.engines.settings import EngineSettings
from ganglion.engines.worker_engine import WorkerEngine


class LlamaEngine(WorkerEngine):
    """One model file, served by one worker process; `faults` are for tests."""

    def __init__(
        self,
        facts: ModelFacts,
        settings: EngineSettings,
        *,
        free_memory: int | None = None,
        free_video_memory: int | None = None,
        faults: tuple[InjectedFault, ...] = (),
    ) -> None:
        """`free_memory` in bytes is what others leave; left out, it is what the machine has now.

        `free_video_memory` is left out where no accelerator can be used.
        """
        free = free_bytes() if free_memory is None else free_memory
        decided = plan(
            settings, facts, cores=usable_cores(), free_bytes=free, free_video_bytes=free_video_memory
        )
        self.plan: EnginePlan = replace(decided, faults=faults)
        limit = self.plan.parallel + settings.queue_limit
        self._decoder = None if facts.projector is None else ImageDecoder()
        tokens = worker_tokens(facts, settings, self.plan, limit=limit, images=self._decoder)
        senses = () if facts.projector is None else facts.projector.senses
        super().__init__(facts, settings, tokens, context=self.plan.context, limit=limit, senses=senses)
        self._has_vectors = "embeddings" in facts.capabilities
        """Whether what vectors take is part of what was promised."""
        self._embedder = WorkerEmbedder(
            tokens, longest=self.plan.vectors.input_tokens, vocabulary_size=facts.vocabulary_size
        )

    async def open(self) -> None:
        """Start the worker, and what decodes images for it."""
        await super().open()
        if self._decoder is not None:
            with suppress(GanglionError):  # the first image tries again
                await self._decoder.open()

    async def close(self) -> None:
        """Stop the worker, and what decodes images for it."""
        await super().close()
        if self._decoder is not None:
            await self._decoder.close()

    def models(self) -> tuple[ModelState, ...]:
        """This model."""
        own = replace(
            self._state(),
            engine="llama",
            memory_mb=self._required_bytes() >> 20,
            devices=("gpu",) if self.plan.video_bytes else ("cpu",),
            kv_total=self.plan.kv_tokens,
            slots_total=self.plan.parallel,
        )
        return (own,)

    # Vectors

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Embed every input."""
        self._check(request.model)
        with self._embedding():
            return await self._embedder.embed(request)

    async def rank(self, request: RankRequest) -> Ranked:
        """Rank every document."""
        self._check(request.model)
        with self._embedding():
            return await self._embedder.rank(request)

    @contextmanager
    def _embedding(self) -> Iterator[None]:
        """One request for vectors, inside the limits of the model and of the machine's memory."""
        with self._counted():
            self._promise_vectors()
            yield

    def _promise_vectors(self) -> None:
        """Count what vectors take from the first request on; raises where memory has no room for it."""
        if self._has_vectors:
            return
        free, needed = free_bytes(), self.plan.vectors.size_bytes
        if free < needed:
            raise InsufficientMemory(
                f"Embeddings of this model need about {needed >> 20} MiB more and {free >> 20} MiB are free.",
                free_mb=free >> 20,
                required_mb=needed >> 20,
            )
        self._has_vectors = True

    def _required_bytes(self) -> int:
        is_promised = not self._has_vectors or "embeddings" in self._facts.capabilities
        vectors = 0 if is_promised else self.plan.vectors.size_bytes
        return self.plan.required_bytes + vectors + self.tokens.second_bytes
