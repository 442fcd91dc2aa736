"""Plans for a GPU: how many layers it takes, how large its KV pool is and how that is cut. Pure.

Law: a row that joins a batch costs a GPU little, a second pass over the weights costs all of it again. So all
who run have slots of their own in one KV context and decode in one batch; the shared context beside it holds
what is too long for them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ganglion.core.errors import InsufficientVideoMemory, InvalidValue
from ganglion.core.model import ModelFacts
from ganglion.scheduler.slots import KvContextShape

if TYPE_CHECKING:
    from ganglion.engines.settings import EngineSettings

BATCH: Final = 2048
"""Rows that are handed over at once: short prompts are read together."""
MICRO_BATCH: Final = 512
"""Rows that the library computes at once."""
STEP_S: Final = 0.05
"""How long whoever decodes may wait for a prompt beside it: the pace is measured, and steps cut to this."""
FIRST_WORK: Final = 512.0
"""Tokens of the first prompt step, before there is a pace."""
PRIVATE_CELLS: Final = 2048
"""Cells of a slot where the pool's size is not given and memory has room for them."""
_SPARE: Final = 0.05
"""Of free video memory, left for what the driver takes and for rounding."""
_FIXED_BYTES: Final = 256 * 2**20
"""The library's own workspace on a device, and the compute buffers but for the logits."""
_OUTPUT_ROWS: Final = 4
"""Logits, and the samplers' logits, probabilities and candidates."""
_LOGIT_BUFFERS: Final = 2
"""Contexts with logits of a whole micro-batch each."""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """What goes to the accelerators."""

    layers: int
    """As the library counts them: the output is one more."""
    kv_tokens: int
    """The pool."""


def layer_count(facts: ModelFacts) -> int:
    """How many layers there are to place, the output counted."""
    return facts.block_count + 1


def weight_bytes(facts: ModelFacts, layers: int) -> int:
    """The weights of the output and of the last blocks, as the library places them; rather too much."""
    layers = min(layers, layer_count(facts))
    if layers == 0:
        return 0
    if not facts.block_bytes:
        return facts.size_bytes * layers // layer_count(facts)
    behind = sum(facts.block_bytes[len(facts.block_bytes) - (layers - 1) :]) if layers > 1 else 0
    return facts.size_bytes - sum(facts.block_bytes) + behind


def cache_bytes(facts: ModelFacts, layers: int, tokens: int, element_bytes: float) -> int:
    """The KV of the blocks that are placed there."""
    share = min(layers, layer_count(facts)) / layer_count(facts)
    return int(facts.kv_bytes(tokens, element_bytes) * share)


def compute_bytes(facts: ModelFacts) -> int:
    """What the library takes besides weights and cells."""
    return _FIXED_BYTES + _LOGIT_BUFFERS * MICRO_BATCH * 4 * facts.vocabulary_size


def output_bytes(facts: ModelFacts, kv_contexts: tuple[KvContextShape, ...]) -> int:
    """What the library takes of the machine's memory for outputs: it has room for rows that never leave.

    For each slot a row of logits, and where tokens are drawn in the graph also one of each sampler's outputs.
    """
    rows = sum(shape.slots + shape.is_shared for shape in kv_contexts if not shape.is_exact)
    return rows * _OUTPUT_ROWS * 4 * facts.vocabulary_size


def share_of(
    settings: "EngineSettings",
    facts: ModelFacts,
    *,
    least_tokens: int,
    context: int,
    element_bytes: float,
    free: int,
) -> GpuShare:
    """Layers and pool for so much free video memory; what was asked for by name is kept to."""
    usable = int(free * (1 - _SPARE)) - compute_bytes(facts)
    layers = settings.gpu_layers
    if layers is None:
        layers = _fitting(facts, least_tokens, element_bytes, usable)
    if settings.kv_tokens is not None or layers < layer_count(facts) or not facts.can_generate:
        return GpuShare(layers, least_tokens)
    each = cache_bytes(facts, layers, 2**20, element_bytes) / 2**20
    left = usable - weight_bytes(facts, layers)
    wanted = context + settings.parallel * min(PRIVATE_CELLS, context)
    fitting = int(left / each) if each > 0 else wanted
    return GpuShare(layers, max(min(wanted, fitting), least_tokens))


def _fitting(facts: ModelFacts, tokens: int, element_bytes: float, usable: int) -> int:
    """The most layers whose weights and cells fit, 0 where not even the output does."""
    for layers in range(layer_count(facts), 0, -1):
        if weight_bytes(facts, layers) + cache_bytes(facts, layers, tokens, element_bytes) <= usable:
            return layers
    return 0


def check_share(facts: ModelFacts, layers: int, cells: int, element_bytes: float, free: int) -> int:
    """The bytes that layers and cells take of the accelerators; raises InsufficientVideoMemory."""
    held = weight_bytes(facts, layers) + cache_bytes(facts, layers, cells, element_bytes)
    required = held + compute_bytes(facts)
    if required > free:
        raise InsufficientVideoMemory(
            f"{min(layers, layer_count(facts))} layers of {facts.name or facts.path} need about "
            f"{required >> 20} MiB of video memory and {free >> 20} MiB are free.",
            free_mb=free >> 20,
            required_mb=required >> 20,
            hint="Leave --gpu-layers out to use as many as fit, lower --kv-tokens or --context, or choose a "
            "smaller model.",
        )
    return held


def split_of(settings: "EngineSettings") -> tuple[float, ...]:
    """The shares of the GPUs, empty where none are asked for; raises InvalidValue for what gives none any."""
    shares = tuple(float(share) for share in (settings.gpu_split or "").split(",") if share)
    if shares and not any(shares):
        raise InvalidValue(
            "gpu_split gives no GPU any layers.", param="gpu_split", hint="As in --gpu-split 3,1."
        )
    if shares and settings.gpu_main is not None:
        raise InvalidValue(
            "gpu_main puts the whole model on one GPU, and gpu_split divides it.",
            param="gpu_main",
            hint="Leave one of --gpu-main and --gpu-split out.",
        )
    return shares


def gpu_contexts(
    context: int, kv_tokens: int, parallel: int, *, cell_step: int, exact_cells: int, most_slots: int
) -> tuple[KvContextShape, ...]:
    """One private context for all who run, and the shared one; all shared when the pool is small.

    Prompts whose numbers are wanted have a slot of their own, made when the first one comes.
    """
    exact = KvContextShape(1, exact_cells, is_shared=False, is_exact=True)
    beside = min(2 * parallel, most_slots - 1)
    shared = -(-context // cell_step) * cell_step
    slots = min(parallel, most_slots)
    cells = min((kv_tokens - shared) // max(slots, 1), shared) // cell_step * cell_step
    if cells < cell_step:
        return (exact, KvContextShape(beside, -(-kv_tokens // cell_step) * cell_step, is_shared=True))
    private = KvContextShape(slots, cells, is_shared=False)
    # The exact one comes first: what outgrows its slot moves on to a later context, and must not go there.
    left = (kv_tokens - private.total_cells) // cell_step * cell_step
    return (exact, private, KvContextShape(beside, max(shared, left), is_shared=True))
