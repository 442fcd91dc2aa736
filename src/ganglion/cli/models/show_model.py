"""`ganglion models show`: what a model's file says of it, and the memory that it would take here."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from ganglion.cli.flags import AT_LEAST_1, ConfigFile, Json, option
from ganglion.cli.models.local_models import LocalContext, ModelName

if TYPE_CHECKING:
    from pathlib import Path

    from ganglion.core.model import ModelFacts
    from ganglion.engines.llama.plan import EnginePlan
    from ganglion.engines.table import EngineName
    from ganglion.registry.naming.resolver import Resolution

_UNBOUNDED: Final = 1 << 62
"""As free memory: a plan that does not fit is shown beside what is free, not refused."""


@dataclass(frozen=True, slots=True)
class _MemoryEstimate:
    """What the model takes for one context of this length, and what a node would plan for it."""

    context: int
    weights_bytes: int
    kv_bytes: int
    planned_kv_tokens: int
    """The pool that all sequences share, with what is parked beside it."""
    planned_bytes: int
    """All of it: weights, pool and the worker itself."""
    free_bytes: int
    is_enough: bool


@dataclass(frozen=True, slots=True)
class _ModelDescription:
    """One model, as `--json` prints it."""

    id: str
    aliases: tuple[str, ...]
    name: str
    architecture: str
    parameters: int
    quantisation: str
    context_length: int
    layers: int
    vocabulary_size: int
    has_template: bool
    capabilities: tuple[str, ...]
    sampling: dict[str, float]
    """The file's own defaults, under what stands in `models.yaml`."""
    size_bytes: int
    files: tuple[str, ...]
    store: str | None
    hub_id: str | None
    format: str
    engine: str | None
    """What runs it here; None where nothing installed does."""
    engine_reason: str
    """Why it does, or why nothing does."""
    projector: str | None
    """The file that it sees or hears with."""
    memory: _MemoryEstimate | None
    """None where the engine plans its own memory."""


def show(
    name: ModelName,
    /,
    *,
    context: Annotated[
        int | None, option("Tokens to estimate memory for (default: what a node would take).", AT_LEAST_1)
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Show what a model's file says, and what the model would take in memory."""
    from ganglion.cli.terminal.output import print_facts, print_json

    local = LocalContext.read(config)
    shown = _description(name, local, context)
    if json:
        print_json(shown)
    else:
        print_facts(_facts(shown))


def _description(name: str, local: LocalContext, context: int | None) -> _ModelDescription:
    from ganglion.engines.table import ENGINES
    from ganglion.registry.files.model_files import files_of, format_of
    from ganglion.registry.stores.sighted import read_whole_facts

    resolution = local.resolve(name)
    path = local.file_of(name, resolution)
    stored = local.catalogue.stored_index.by_path.get(path)
    entry = resolution.entry
    facts = read_whole_facts(
        path,
        named=(entry.mmproj if entry is not None else None) or local.config.engine.mmproj,
        find=local.builds.stored,
    )
    files = stored.files if stored is not None else files_of(path)
    engine, reason = _engine(resolution, path, local)
    plans = engine is not None and ENGINES[engine].has_plan and format_of(path) in ENGINES[engine].formats
    return _ModelDescription(
        id=resolution.id,
        aliases=resolution.aliases,
        name=facts.name,
        architecture=facts.architecture,
        parameters=facts.parameters,
        quantisation=facts.quantisation,
        context_length=facts.context_length,
        layers=facts.block_count,
        vocabulary_size=facts.vocabulary_size,
        has_template=bool(facts.chat_template),
        capabilities=facts.capabilities,
        sampling=_sampling(resolution, facts),
        size_bytes=facts.size_bytes,
        files=tuple(str(file) for file in files),
        store=stored.store if stored is not None else None,
        hub_id=stored.hub_id if stored is not None else None,
        format=format_of(path),
        engine=engine,
        engine_reason=reason,
        projector=facts.projector.path if facts.projector is not None else None,
        memory=_memory(resolution, local, facts, context) if plans else None,
    )


def _engine(resolution: "Resolution", path: "Path", local: LocalContext) -> "tuple[EngineName | None, str]":
    """The engine that a load would take and why, or why none would."""
    from ganglion.core.engine import LoadOptions
    from ganglion.core.errors import GanglionError
    from ganglion.registry.files.model_files import format_of

    selection = local.builds.selection
    try:
        selection.check_code(path)
        choice = selection.choose(resolution.id, format_of(path), resolution.entry, LoadOptions())
    except GanglionError as error:
        return None, f"{error.message} {error.hint or ''}".strip()
    return choice.engine, choice.why


def _sampling(resolution: "Resolution", facts: "ModelFacts") -> dict[str, float]:
    from dataclasses import asdict

    own = asdict(facts.sampling)
    written = asdict(resolution.entry.sampling) if resolution.entry is not None else {}
    defaults = own | {key: value for key, value in written.items() if value is not None}
    return {key: value for key, value in defaults.items() if isinstance(value, int | float)}


def _memory(
    resolution: "Resolution", local: LocalContext, facts: "ModelFacts", context: int | None
) -> _MemoryEstimate:
    from ganglion.engines.llama.plan import ELEMENT_BYTES
    from ganglion.engines.resources import free_bytes

    plan = _plan(resolution, local, context)
    free = free_bytes()
    return _MemoryEstimate(
        context=plan.context,
        weights_bytes=facts.size_bytes,
        kv_bytes=facts.kv_bytes(plan.context, ELEMENT_BYTES[plan.kv_type]),
        planned_kv_tokens=plan.kv_tokens + plan.parked_tokens,
        planned_bytes=plan.required_bytes,
        free_bytes=free,
        is_enough=plan.required_bytes <= free,
    )


def _plan(resolution: "Resolution", local: LocalContext, context: int | None) -> "EnginePlan":
    """What a node with this config would do: the engine is made as the node makes it, and not opened."""
    from ganglion.cli.model_builder import ModelBuilder
    from ganglion.core.engine import LoadOptions
    from ganglion.engines.llama.engine import LlamaEngine

    recipe = ModelBuilder(resolution, local.builds, resolution.id)
    engine = asyncio.run(recipe.build(LoadOptions(context_length=context), free_bytes=_UNBOUNDED))
    assert isinstance(engine, LlamaEngine)
    return engine.plan


def _facts(shown: _ModelDescription) -> list[tuple[str, str]]:
    from ganglion.cli.terminal.format import count_words, size_words

    sampling = ", ".join(f"{key} {value:g}" for key, value in shown.sampling.items())
    facts = [
        ("name", shown.id),
        ("also called", ", ".join(shown.aliases)),
        ("title", shown.name),
        ("architecture", shown.architecture),
        ("parameters", count_words(shown.parameters)),
        ("quantisation", shown.quantisation),
        ("context length", f"{shown.context_length} tokens, as trained"),
        ("chat template", "yes" if shown.has_template else "none; ChatML is used"),
        ("can", ", ".join(shown.capabilities)),
        ("sampling defaults", sampling or "none of its own"),
        ("size", size_words(shown.size_bytes)),
        ("files", "\n".join(shown.files)),
        ("projector", shown.projector or ""),
        ("format", shown.format),
        ("engine", f"{shown.engine}: {shown.engine_reason}" if shown.engine else shown.engine_reason),
        ("store", shown.store or ""),
        ("hub id", shown.hub_id or ""),
    ]
    if shown.memory is not None:
        facts += _memory_facts(shown.memory)
    return [(key, value) for key, value in facts if value]


def _memory_facts(memory: _MemoryEstimate) -> list[tuple[str, str]]:
    from ganglion.cli.terminal.format import memory_words

    def words(size_bytes: int) -> str:
        return memory_words(-(-size_bytes // 2**20))

    return [
        (
            f"memory for {memory.context} tokens",
            f"{words(memory.weights_bytes + memory.kv_bytes)}: weights {words(memory.weights_bytes)}, "
            f"KV {words(memory.kv_bytes)}",
        ),
        (
            "a node would plan",
            f"{words(memory.planned_bytes)} with KV for {memory.planned_kv_tokens} tokens; "
            f"{words(memory.free_bytes)} are free"
            f"{'' if memory.is_enough else ', which is too little'}",
        ),
    ]
