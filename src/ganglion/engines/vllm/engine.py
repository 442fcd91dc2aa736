"""vLLM as an Engine: chat and token sessions over a worker in vLLM's own environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

import msgspec

from ganglion.core.engine import Embedded, EmbedRequest, ManagedEngine, ModelState, Ranked, RankRequest
from ganglion.core.errors import GanglionError, InvalidValue, LoadFailed
from ganglion.core.model import ModelFacts
from ganglion.engines.embedder import WorkerEmbedder
from ganglion.engines.images.decoder import ImageDecoder
from ganglion.engines.images.placing import ImagePlacer
from ganglion.engines.resources import free_bytes
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.supervisor import Supervisor
from ganglion.engines.vllm.environment import WorkerFolder, check_python, computes_on_processor
from ganglion.engines.vllm.installed import python_of
from ganglion.engines.vllm.special_runs import served_facts
from ganglion.engines.vllm.unsupported import check_request
from ganglion.engines.vllm.vllm_plan import VllmPlan, plan
from ganglion.engines.worker_engine import WorkerEngine
from ganglion.engines.worker_tokens import WorkerTokens

WORKER: Final = "ganglion.engines.vllm.worker.entry"


class VllmEngine(WorkerEngine):
    """One checkpoint, served by one worker that has processes of its own."""

    def __init__(
        self,
        facts: ModelFacts,
        settings: EngineSettings,
        *,
        free_memory: int | None = None,
        free_video_memory: int | None = None,
    ) -> None:
        """`free_memory` in bytes is what others leave; left out, it is what the machine has now."""
        facts = served_facts(facts)
        self._python = python_of(settings.vllm.python, os.environ)
        self._on_processor = computes_on_processor(self._python)
        self._folder = WorkerFolder()
        decided = plan(
            settings,
            facts,
            free_bytes=free_bytes() if free_memory is None else free_memory,
            free_video_bytes=free_video_memory,
            on_processor=self._on_processor,
            variables=os.environ,
        )
        self.plan: VllmPlan = replace(decided, folder=str(self._folder.path))
        if not self.plan.sees:
            plain = tuple(each for each in facts.capabilities if each != "vision")
            facts = replace(facts, capabilities=plain)
        self._decoder = ImageDecoder() if self.plan.sees else None
        limit = self.plan.parallel + settings.queue_limit
        tokens = WorkerTokens(
            settings.model_id,
            Supervisor(
                settings.model_id,
                WORKER,
                msgspec.msgpack.encode(self.plan),
                settings.limits,
                self._folder.launch(self._python, self.plan),
            ),
            vocabulary_size=facts.vocabulary_size,
            limit=limit,
            check=check_request,
            has_children=True,
            images=None if self._decoder is None else ImagePlacer(self._decoder, lambda: 0),
        )
        senses = ("vision",) if self.plan.sees else ()
        super().__init__(facts, settings, tokens, context=self.plan.context, limit=limit, senses=senses)
        self._embedder = WorkerEmbedder(
            tokens, longest=self.plan.context, vocabulary_size=facts.vocabulary_size
        )

    async def open(self) -> None:
        """Start vLLM and wait until the model is loaded."""
        await check_python(self._python)
        self._folder.make()
        try:
            await super().open()
        except BaseException:
            self._folder.remove()
            raise
        if self._decoder is not None:
            with suppress(GanglionError):  # the first image tries again
                await self._decoder.open()

    async def close(self) -> None:
        """Stop vLLM with all its processes."""
        await super().close()
        self._folder.remove()
        if self._decoder is not None:
            await self._decoder.close()

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Embed every input."""
        self._check(request.model)
        with self._pooling():
            return await self._embedder.embed(request)

    async def rank(self, request: RankRequest) -> Ranked:
        """Rank every document."""
        self._check(request.model)
        with self._pooling():
            return await self._embedder.rank(request)

    @contextmanager
    def _pooling(self) -> Iterator[None]:
        """One request for vectors; vLLM runs a model to generate or to make them, and not both."""
        if self._facts.can_generate:
            raise InvalidValue(
                f"The model {self._settings.model_id!r} generates text, and vLLM makes no vectors with it.",
                param="model",
                hint="Name an embedding or ranking model, or a GGUF file, which llama.cpp does both with.",
            )
        with self._counted():
            yield

    def models(self) -> tuple[ModelState, ...]:
        """This model."""
        own = replace(
            self._state(),
            engine="vllm",
            memory_mb=self.plan.required_bytes >> 20,
            kv_total=self.tokens.ready.kv_tokens,
            devices=("cpu",) if self._on_processor else self._settings.vllm.devices or ("gpu",),
            slots_total=self.plan.parallel,
        )
        return (own,)


def build_vllm(
    facts: ModelFacts | None, settings: object, *, free_memory: int | None, free_video_memory: int | None
) -> ManagedEngine:
    """The engine of one checkpoint."""
    assert isinstance(settings, EngineSettings)
    if facts is None:
        raise LoadFailed(
            "vLLM runs checkpoints, and no model was named.",
            hint="Name a folder with config.json and safetensors files.",
        )
    return VllmEngine(facts, settings, free_memory=free_memory, free_video_memory=free_video_memory)
