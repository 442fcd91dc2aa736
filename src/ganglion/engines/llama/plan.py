"""Plans a worker from the settings and the machine: KV contexts, threads and memory, decided once."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from ganglion.core.errors import InsufficientMemory, InvalidValue, LoadFailed
from ganglion.core.model import ModelFacts, Pooling
from ganglion.engines.llama import gpu_plan
from ganglion.engines.llama.faults import InjectedFault
from ganglion.scheduler.slots import KvContextShape

if TYPE_CHECKING:  # a worker reads plans and need not load how they are configured
    from ganglion.engines.settings import EngineSettings

_INPUT_TOKENS: Final = 2048
"""The longest input, unless the model's context is shorter."""
_RANKED_TOKENS: Final = 512
"""The same where a decoder must read its input in one batch, and each row costs a vocabulary of logits."""
_CELL_BYTES: Final = 2.0
_COMPUTE_BYTES: Final = 64 * 2**20
"""Buffers besides the logits'."""


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """The context that reads inputs.

    A decoder's tokens see only what came before them, so its inputs are read in pieces and pooled by us:
    the batch stays small, however long the input. What must be seen whole is pooled by the library.
    """

    pooling: Pooling = "mean"
    is_streamed: bool = True
    input_tokens: int = _INPUT_TOKENS
    batch: int = 128
    size_bytes: int = 0

    @property
    def cells(self) -> int:
        """Room for an input and for what shares its last batch."""
        return self.input_tokens + self.batch if self.is_streamed else self.batch


def _plan_vectors(facts: ModelFacts, context: int, output_rows: int) -> VectorPlan:
    """Decide; `output_rows` is how many rows of logits a batch may have."""
    pooling: Pooling = "mean" if facts.pooling in (None, "none") else facts.pooling
    longest = min(context, facts.context_length, _INPUT_TOKENS)
    row_bytes = 2 * 4 * facts.vocabulary_size  # in the graph and in the output
    if not facts.can_generate:
        return VectorPlan(
            pooling, is_streamed=False, input_tokens=longest, batch=longest, size_bytes=_COMPUTE_BYTES
        )
    if pooling in ("mean", "last"):
        size_bytes = _COMPUTE_BYTES + output_rows * row_bytes
        size_bytes += facts.kv_bytes(longest + output_rows, _CELL_BYTES)
        return VectorPlan(
            pooling, is_streamed=True, input_tokens=longest, batch=output_rows, size_bytes=size_bytes
        )
    longest = min(longest, _RANKED_TOKENS)
    size_bytes = _COMPUTE_BYTES + longest * row_bytes + facts.kv_bytes(longest, _CELL_BYTES)
    return VectorPlan(pooling, is_streamed=False, input_tokens=longest, batch=longest, size_bytes=size_bytes)


PRIVATE_SLOTS: Final = (256, 768)
"""Cells of the private slots, as many of each size: single turns fit the first, conversations the second."""
DEFAULT_CONTEXT: Final = 8192
DEFAULT_EXTRA: Final = 8192
"""Tokens of private slots beside one full context, when the pool's size is not given."""
CELL_STEP: Final = 256
"""The library pads cells to this."""
LARGEST_CHUNK: Final = 256
"""More tokens in one prefill batch gain nothing on CPUs and cost compute buffers of a vocabulary a token."""
LARGEST_BACKGROUND: Final = 512
"""The same of a batch in the background, deep in a long context on a CPU: there the attention kernel cuts the
rows of all heads into four parts a thread, and half-filled tiles cost a twentieth of the time at 256."""
MAX_SLOTS: Final = 256
EXACT_TOKENS: Final = 2048
"""The longest prompt whose scores do not depend on a load; its cells are made when the first one comes."""
_NO_KV_CONTEXT: Final = KvContextShape(1, CELL_STEP, is_shared=True)
"""What a model gets that never generates."""
_OUTPUT_BYTES: Final = 24 * 2**20
"""What the logits of one batch may take, once in the library's buffers and once more in its output: every
row is a whole vocabulary."""
_SMALLEST_OUTPUT: Final = 64
"""Rows of logits that are allowed however large the vocabulary."""
ELEMENT_BYTES: Final = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
_UNSUPPORTED_PROJECTORS: Final = frozenset({"deepseek4v", "hunyuanvl"})
_PICTURE_BYTES: Final = 192 * 2**20
"""What pictures take beside their projector: the buffers to read one, and those that are kept."""
_OVERHEAD_BYTES: Final = 192 * 2**20
"""The worker's interpreter, the library and compute buffers of a small model."""

STEP_S: Final = 0.55
"""How long whoever decodes on processors may wait for a prompt beside it."""
_NICENESS: Final = 5
"""Of a second worker: a quarter of the time where the first one wants all of it, so that neither starves."""
_REPACK_QUANTISATIONS: Final = frozenset({"Q4_1"})
REPACK_ARCHITECTURES: Final = frozenset({"llama", "mistral3", "qwen2", "qwen3", "smollm3"})
"""Whose graphs were seen to add an adapter's share to every matrix that is recast."""
_REPACK_BYTES: Final = 2**30
"""Larger models are read from memory for every token, and are better left mapped."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What a worker is started with."""

    path: str
    context: int
    kv_contexts: tuple[KvContextShape, ...]
    parked_tokens: int
    parallel: int
    threads: int
    kv_type: str
    gpu_layers: int
    is_deterministic: bool
    required_bytes: int
    """Of the machine's memory."""
    video_bytes: int = 0
    """Of the accelerator's."""
    is_repacked: bool = False
    """Whether slow weights are held in a faster form."""
    step_s: float = STEP_S
    kv_folder: str | None = None
    kv_folder_bytes: int = 0
    faults: tuple[InjectedFault, ...] = ()
    vectors: VectorPlan = VectorPlan()
    concepts: tuple[str, ...] = ()
    """Concept packs, by the path of their vectors."""
    is_accelerated: bool = False
    """Whether layers run on an accelerator whose memory is known, so that batches and slots are its own."""
    gpu_split: tuple[float, ...] = ()
    """How much of the layers each accelerator takes; empty divides by what is free."""
    gpu_main: int | None = None
    """The accelerator that takes the whole model; None divides it among all."""
    layer_count: int = 0
    """How many layers there are, the output counted."""
    samples_in_graph: bool = False
    """Whether tokens are drawn where the logits are, wherever a request allows it."""
    projector: str | None = None
    """The file that turns pictures into embeddings, for a model that sees or hears."""
    niceness: int = 0
    """How far the worker stands back behind others that want the processor."""

    def for_several_caches(self) -> "EnginePlan":
        """The same pool for models whose saved state fits no other context: nothing is moved."""
        if self.is_deterministic:  # each stays in the slot that it began in, or is computed again
            return replace(self, parked_tokens=0)
        exact = tuple(shape for shape in self.kv_contexts if shape.is_exact)
        return replace(self, kv_contexts=(*exact, replace(self.kv_contexts[-1], cells=self.kv_tokens)))

    @property
    def largest_background(self) -> int:
        """How many rows a batch in the background may have; an accelerator's kernels have other tiles."""
        if self.is_accelerated:
            return gpu_plan.BATCH
        return LARGEST_CHUNK if self.gpu_layers else LARGEST_BACKGROUND

    @property
    def largest_chunk(self) -> int:
        """How many tokens of prompts a step beside decoding may have."""
        return gpu_plan.BATCH if self.is_accelerated else LARGEST_CHUNK

    @property
    def first_work(self) -> float | None:
        """How many tokens the first prompt step has, before there is a pace; None keeps to a tile."""
        return gpu_plan.FIRST_WORK if self.is_accelerated else None

    def micro_batch(self, number: int) -> int:
        """How many rows of a batch the library computes at once."""
        batch = self.batch(number)
        return min(batch, gpu_plan.MICRO_BATCH) if self.is_accelerated else batch

    def batch(self, number: int) -> int:
        """How many rows a batch of a context may have."""
        shape = self.kv_contexts[number]
        if self.is_accelerated:
            return gpu_plan.BATCH
        return max(self.largest_background if shape.is_shared else LARGEST_CHUNK, shape.slots)

    @property
    def kv_tokens(self) -> int:
        """How many tokens the contexts hold that everybody uses."""
        return sum(shape.total_cells for shape in self.kv_contexts if not shape.is_exact)


def output_rows(vocabulary_size: int) -> int:
    """How many rows of a batch may have logits; whole tiles, since kernels work in these."""
    rows = _OUTPUT_BYTES // (4 * max(vocabulary_size, 1))
    return min(max(rows // _SMALLEST_OUTPUT * _SMALLEST_OUTPUT, _SMALLEST_OUTPUT), LARGEST_CHUNK)


def context_of(chosen: int | None, trained: int) -> int:
    """The longest single sequence: what the operator asked for, else what the model was trained for."""
    return chosen or min(trained, DEFAULT_CONTEXT)


def plan(
    settings: "EngineSettings",
    facts: ModelFacts,
    *,
    cores: int,
    free_bytes: int,
    free_video_bytes: int | None = None,
) -> EnginePlan:
    """Decide everything, or say what does not fit; without `free_video_bytes` there is no accelerator."""
    if facts.context_length < 1 or facts.kv_values_per_token < 0:
        raise InvalidValue(f"{facts.path} does not say how long its context is.", param="model")
    projector_bytes = _projector_bytes(facts)
    if free_video_bytes is not None:
        free_video_bytes = max(free_video_bytes - projector_bytes, 0)
    context = context_of(settings.context, facts.context_length)
    kv_tokens = settings.kv_tokens or context + DEFAULT_EXTRA
    element_bytes = ELEMENT_BYTES[settings.kv_type]
    split = gpu_plan.split_of(settings)
    layers = settings.gpu_layers or 0
    if free_video_bytes is not None and settings.gpu_layers != 0:
        share = gpu_plan.share_of(
            settings,
            facts,
            least_tokens=kv_tokens,
            context=context,
            element_bytes=element_bytes,
            free=free_video_bytes,
        )
        layers, kv_tokens = share.layers, share.kv_tokens
    is_accelerated = layers > 0 and free_video_bytes is not None
    _check_pool(settings, context, kv_tokens)
    divide = _deterministic_contexts if settings.is_deterministic else _kv_contexts
    if is_accelerated and not settings.is_deterministic:
        divide = _gpu_contexts
    kv_contexts = divide(context, kv_tokens, settings.parallel) if facts.can_generate else (_NO_KV_CONTEXT,)
    total = sum(shape.total_cells for shape in kv_contexts)
    parked = min(kv_tokens, context + DEFAULT_EXTRA if is_accelerated else kv_tokens) // 2
    parked = parked if facts.can_generate else 0
    vectors = _plan_vectors(facts, context, output_rows(facts.vocabulary_size))
    required = facts.memory_bytes(total + parked, element_bytes) + _OVERHEAD_BYTES
    if "embeddings" in facts.capabilities:
        required += vectors.size_bytes  # else it is asked for when the first vector is
    required += projector_bytes
    video = 0
    if is_accelerated:
        assert free_video_bytes is not None
        # The layers, and the output beside them, take their weights and their cells along.
        video = gpu_plan.check_share(facts, layers, total, element_bytes, free_video_bytes)
        required += gpu_plan.output_bytes(facts, kv_contexts) - video
    _check_memory(facts, required, free_bytes)
    return EnginePlan(
        path=facts.path,
        context=context,
        kv_contexts=kv_contexts,
        parked_tokens=parked,
        parallel=min(settings.parallel, sum(shape.slots for shape in kv_contexts if not shape.is_exact)),
        threads=settings.threads or cores,
        kv_type=settings.kv_type,
        gpu_layers=layers,
        is_accelerated=is_accelerated,
        gpu_split=split,
        gpu_main=settings.gpu_main,
        layer_count=gpu_plan.layer_count(facts),
        samples_in_graph=_samples_in_graph(settings, facts, layers if is_accelerated else 0),
        step_s=gpu_plan.STEP_S if is_accelerated else STEP_S,
        is_deterministic=settings.is_deterministic,
        is_repacked=settings.is_recast
        and _gains_by_repacking(settings, facts, layers, free_bytes - required),
        required_bytes=required,
        video_bytes=video,
        # Deterministic sequences share no KV, not even with what they themselves were in an earlier life.
        kv_folder=None if settings.is_deterministic else settings.kv_folder,
        kv_folder_bytes=settings.kv_folder_bytes,
        vectors=vectors,
        concepts=settings.concepts,
        projector=None if facts.projector is None else facts.projector.path,
    )


def _check_pool(settings: "EngineSettings", context: int, kv_tokens: int) -> None:
    if kv_tokens < context:
        raise InvalidValue(
            f"A pool of {kv_tokens} tokens cannot hold one sequence of {context}.",
            param="kv_tokens",
            hint=f"Raise --kv-tokens to at least {context}, or lower --context.",
        )
    if settings.is_deterministic and settings.kv_type != "f16":
        raise InvalidValue(
            f"Deterministic mode runs without flash attention, which a {settings.kv_type} cache needs.",
            param="kv_type",
            hint="Leave --kv-type at f16, or leave --deterministic out.",
        )


def _check_memory(facts: ModelFacts, required: int, free_bytes: int) -> None:
    if required > free_bytes:
        raise InsufficientMemory(
            f"{facts.name or facts.path} needs about {required >> 20} MiB of memory and "
            f"{free_bytes >> 20} MiB are free.",
            free_mb=free_bytes >> 20,
            required_mb=required >> 20,
            hint="Lower --kv-tokens or --context, use --kv-type q8_0, or choose a smaller model.",
        )


def _samples_in_graph(settings: "EngineSettings", facts: ModelFacts, accelerated_layers: int) -> bool:
    """What was asked for, else wherever the output is on the accelerator, and the logits with it."""
    if settings.graph_sampling is not None:
        return settings.graph_sampling
    return accelerated_layers >= gpu_plan.layer_count(facts)


def _projector_bytes(facts: ModelFacts) -> int:
    """What a model's projector takes; raises LoadFailed for one that cannot be used here."""
    projector = facts.projector
    if projector is None:
        return 0
    if projector.kind in _UNSUPPORTED_PROJECTORS:
        raise LoadFailed(
            f"{projector.path} is a projector of the kind {projector.kind}, whose rows depend on what stands "
            "before a picture; that is not supported yet.",
            hint="Load the model for text alone: --mmproj none.",
        )
    return projector.size_bytes + _PICTURE_BYTES


def plan_second(
    settings: "EngineSettings", facts: ModelFacts, first: EnginePlan, *, cores: int, free_bytes: int
) -> EnginePlan:
    """A worker for one sequence at a time beside the first, which computes as that one does.

    Where the weights are mapped from their file, both workers have the same pages. Raises what does not fit.
    """
    if first.gpu_layers:
        # What the accelerator has left now is not known here, and a worker without it would prove nothing.
        raise InsufficientMemory("No second worker on an accelerator.", free_mb=0, required_mb=0)
    kv_tokens = min(first.kv_tokens, first.context + sum(PRIVATE_SLOTS))
    alone = structs.replace(settings, context=first.context, kv_tokens=kv_tokens, parallel=1, kv_folder=None)
    shared = 0 if first.is_repacked else facts.size_bytes
    decided = plan(alone, facts, cores=cores, free_bytes=free_bytes + shared)
    required = decided.required_bytes - shared
    return replace(
        decided,
        is_repacked=first.is_repacked,
        required_bytes=required,
        faults=first.faults,
        niceness=_NICENESS,
    )


def _gains_by_repacking(settings: "EngineSettings", facts: ModelFacts, layers: int, left_bytes: int) -> bool:
    """Both forms lie in memory while they are loaded; deterministic mode keeps to the usual kernels."""
    return (
        facts.quantisation in _REPACK_QUANTISATIONS
        and facts.architecture in REPACK_ARCHITECTURES
        and facts.size_bytes <= min(_REPACK_BYTES, left_bytes)
        and layers == 0
        and not settings.is_deterministic
    )


def _kv_contexts(context: int, kv_tokens: int, parallel: int) -> tuple[KvContextShape, ...]:
    """Half of the pool in private slots, half shared; all shared when the pool is small.

    The shared context has slots for as many idle sequences as run: those cost nothing there while they share.
    """
    beside = min(2 * parallel, MAX_SLOTS - 1)
    shared = _padded(max(context, kv_tokens // 2))
    slots = min(max(kv_tokens - shared, 0) // sum(PRIVATE_SLOTS), parallel)
    exact = KvContextShape(1, _padded(min(context, EXACT_TOKENS)), is_shared=False, is_exact=True)
    if slots < 1 or context <= max(PRIVATE_SLOTS):
        return (exact, KvContextShape(beside, _padded(kv_tokens), is_shared=True))
    private = tuple(KvContextShape(slots, cells, is_shared=False) for cells in PRIVATE_SLOTS)
    left = kv_tokens - sum(shape.total_cells for shape in private)
    shared = max(shared, left // CELL_STEP * CELL_STEP)
    return (*private, exact, KvContextShape(beside, shared, is_shared=True))


def _gpu_contexts(context: int, kv_tokens: int, parallel: int) -> tuple[KvContextShape, ...]:
    return gpu_plan.gpu_contexts(
        context,
        kv_tokens,
        parallel,
        cell_step=CELL_STEP,
        exact_cells=_padded(min(context, EXACT_TOKENS)),
        most_slots=MAX_SLOTS,
    )


def _deterministic_contexts(context: int, kv_tokens: int, parallel: int) -> tuple[KvContextShape, ...]:
    """One sequence a slot, each in cells of its own from the first on, so that no neighbour is visible."""
    cells = _padded(context)
    slots = min(max(kv_tokens // cells, 1), parallel, MAX_SLOTS)
    alone = KvContextShape(1, cells, is_shared=True)
    return (KvContextShape(slots - 1, cells, is_shared=False), alone) if slots > 1 else (alone,)


def _padded(tokens: int) -> int:
    return -(-tokens // CELL_STEP) * CELL_STEP
