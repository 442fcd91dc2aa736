"""`ganglion models resolve`: what a name means, and every step on the way there."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext, ModelName
from ganglion.cli.terminal.console import say_error

if TYPE_CHECKING:
    from ganglion.registry.naming.resolver import Resolution, ResolveStep, Source


@dataclass(frozen=True, slots=True)
class _ResolvedName:
    """What a name means, as `--json` prints it."""

    name: str
    id: str | None
    """None when it means nothing."""
    kind: str | None
    """`file`, `embedded`, or `hub` for what would be downloaded."""
    path: str | None
    store: str | None
    repo: str | None
    quant: str | None
    aliases: tuple[str, ...]
    steps: "tuple[ResolveStep, ...]"
    hint: str | None = None
    format: str | None = None
    """None while only the hub could say."""
    engine: str | None = None
    """What would run it here; None where nothing installed does, or while its format is not known."""
    engine_reason: str | None = None


def resolve(name: ModelName, /, *, json: Json = False, config: ConfigFile = None) -> int:
    """Say what a name means; ends with 1 when it means nothing."""
    from ganglion.cli.terminal.output import TableRow, print_facts, print_json, print_table
    from ganglion.core.errors import ModelNotFound
    from ganglion.registry.naming.resolver import Unresolved

    local = LocalContext.read(config)
    outcome = local.explain(name)
    if isinstance(outcome, Unresolved):
        meaning = _ResolvedName(name, None, None, None, None, None, None, (), outcome.steps, outcome.hint)
    else:
        meaning = _resolved(name, outcome, local)
    if json:
        print_json(meaning)
    else:
        print_table(("tried", "gave"), [TableRow((step.tried, step.gave)) for step in outcome.steps])
    if isinstance(outcome, Unresolved):
        unknown = ModelNotFound(outcome.name, hint=outcome.hint)
        say_error(unknown.message, unknown.hint)
        return 1
    if not json:
        print_facts(_answer(meaning))
    return 0


def _resolved(name: str, resolution: "Resolution", local: LocalContext) -> _ResolvedName:
    kind, path, store, repo, quant = _source(resolution.source, local)
    return _ResolvedName(
        name,
        resolution.id,
        kind,
        path,
        store,
        repo,
        quant,
        resolution.aliases,
        resolution.steps,
        None,
        *_engine(resolution, path, local),
    )


def _engine(
    resolution: "Resolution", path: str | None, local: LocalContext
) -> tuple[str | None, str | None, str | None]:
    """The model's format, the engine that a load would take, and why; or why none would."""
    from ganglion.cli.engine_selection import known_format
    from ganglion.core.engine import LoadOptions
    from ganglion.core.errors import GanglionError

    model_format = known_format(resolution, None if path is None else Path(path))
    if model_format is None:
        return None, None, "its repository says whether it is a GGUF file or a checkpoint"
    try:
        choice = local.builds.selection.choose(resolution.id, model_format, resolution.entry, LoadOptions())
    except GanglionError as error:
        return model_format, None, f"{error.message} {error.hint or ''}".strip()
    return model_format, choice.engine, choice.why


def _source(
    source: "Source", local: LocalContext
) -> tuple[str, str | None, str | None, str | None, str | None]:
    from ganglion.registry.naming.resolver import EmbeddedSource, HeldSource, HubSource, LocalFileSource

    match source:
        case LocalFileSource(path=path, store=store):
            return "file", str(path), store, None, None
        case EmbeddedSource():
            found = local.embedded
            return "embedded", None if found is None else str(found.path), None, None, None
        case HubSource(repo=repo, quant=quant):
            return "hub", None, None, repo, quant
        case HeldSource():
            raise AssertionError("a command holds no model")
        case _:
            assert_never(source)


def _answer(meaning: _ResolvedName) -> list[tuple[str, str]]:
    where = {
        "file": f"{meaning.path} ({meaning.store or 'named by its path'})",
        "embedded": meaning.path or "the embedded model, which is not here yet",
        "hub": f"{meaning.repo}, {meaning.quant or 'any quantisation'}, to be downloaded",
    }
    facts = [("id", meaning.id or ""), ("where", where[meaning.kind or "file"])]
    if meaning.format is not None:
        facts.append(("format", meaning.format))
    reason = meaning.engine_reason or ""
    facts.append(("engine", f"{meaning.engine}: {reason}" if meaning.engine else reason))
    return facts + ([("also called", ", ".join(meaning.aliases))] if meaning.aliases else [])
