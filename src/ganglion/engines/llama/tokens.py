"""The tokens of one GGUF file: its worker, and a second one for suspects where memory has room for it."""

from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from ganglion.core.errors import InsufficientMemory
from ganglion.core.model import ModelFacts
from ganglion.engines.images.decoder import ImageDecoder
from ganglion.engines.images.placing import ImagePlacer
from ganglion.engines.llama.plan import EnginePlan, plan_second
from ganglion.engines.resources import free_bytes, usable_cores
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.supervisor import Supervisor
from ganglion.engines.worker_tokens import WorkerTokens

WORKER: Final = "ganglion.engines.llama.worker.main"
_SECOND_PATIENCE: Final = 4.0
"""How many times as long a second worker may take for a step."""
_KEEP_S: Final = 5.0
"""How long a worker that ends may take to keep its hot prefixes."""


def worker_tokens(
    facts: ModelFacts,
    settings: EngineSettings,
    plan: EnginePlan,
    *,
    limit: int,
    images: ImageDecoder | None = None,
) -> WorkerTokens:
    """The tokens of a planned model; nothing is started yet."""
    placer = None if images is None else ImagePlacer(images, lambda: tokens.ready.sample_rate)
    tokens = WorkerTokens(
        settings.model_id,
        Supervisor(settings.model_id, WORKER, msgspec.msgpack.encode(plan), settings.limits),
        vocabulary_size=facts.vocabulary_size,
        limit=limit,
        make_second=partial(_make_second, facts, settings, plan),
        keep_s=_KEEP_S if plan.kv_folder is not None else 0.0,
        is_deterministic=plan.is_deterministic,
        images=placer,
    )
    return tokens


def _make_second(
    facts: ModelFacts, settings: EngineSettings, plan: EnginePlan
) -> tuple[Supervisor, int] | None:
    """A second worker's supervisor and its memory; None where memory has no room for it."""
    try:
        second = plan_second(settings, facts, plan, cores=usable_cores(), free_bytes=free_bytes())
    except InsufficientMemory:
        return None
    # Its processor time is the first one's to take: slow is not hung.
    limits = replace(settings.limits, hang_s=_SECOND_PATIENCE * settings.limits.hang_s)
    supervisor = Supervisor(f"{settings.model_id} (second)", WORKER, msgspec.msgpack.encode(second), limits)
    return supervisor, second.required_bytes
