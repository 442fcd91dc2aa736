"""`ganglion models verify`: hash the files of models and compare with their digests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext, local_model_names
from ganglion.cli.terminal.console import say, say_error

if TYPE_CHECKING:
    from ganglion.registry.files.receipts import Receipts
    from ganglion.registry.hub.download import Report
    from ganglion.registry.naming.resolver import Resolution
    from ganglion.registry.stores.stored_models import StoredModel

_VerifyStatus = Literal["ok", "damaged", "unknown"]
_UNKNOWN: Final = "nothing says what its bytes should be"


@dataclass(frozen=True, slots=True)
class _FileToVerify:
    """A model to be read."""

    id: str
    files: tuple[Path, ...]
    size_bytes: int
    again: str
    """How to have it anew, for people."""
    digest: str | None = None
    """What all of it should have; None leaves that to its store and its receipt."""
    error: str | None = None
    """What its header already says."""


@dataclass(frozen=True, slots=True)
class _VerifyResult:
    """The result for one model, as `--json` prints it."""

    id: str
    verdict: _VerifyStatus
    files: tuple[str, ...]
    reason: str | None = None
    again: str | None = None


def verify(
    *names: Annotated[
        str, Parameter(help="Models to read (default: all that are here).", completer=local_model_names)
    ],
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Hash models in full; ends with 1 when one is damaged."""
    from ganglion.cli.terminal.output import TableRow, print_json, print_table
    from ganglion.cli.terminal.progress import download_bar

    local = LocalContext.read(config)
    suspects = list(_named(names, local) if names else _all(local))
    receipts = local.hub.receipts
    with download_bar("reading", sum(each.size_bytes for each in suspects)) as report:
        judged = list(_results(suspects, receipts, report))
    if json:
        print_json(judged)
    else:
        print_table(("model", "verdict"), [TableRow((each.id, each.verdict), _note(each)) for each in judged])
    damaged = [each for each in judged if each.verdict == "damaged"]
    count = {verdict: sum(each.verdict == verdict for each in judged) for verdict in ("ok", "unknown")}
    say(f"{count['ok']} ok, {len(damaged)} damaged, {count['unknown']} unknown")
    if damaged:
        say_error(f"{', '.join(each.id for each in damaged)}: damaged.", damaged[0].again)
    return 1 if damaged else 0


def _all(local: LocalContext) -> Iterator[_FileToVerify]:
    for model in local.catalogue.stored:
        yield _stored(local.catalogue.id_of(model), model)
    if local.catalogue.embedded is not None and local.embedded is not None:
        yield from _embedded(local)


def _named(names: Sequence[str], local: LocalContext) -> Iterator[_FileToVerify]:
    for name in dict.fromkeys(names):
        yield from _files_of(name, local.resolve(name), local)


def _files_of(name: str, resolution: "Resolution", local: LocalContext) -> Iterator[_FileToVerify]:
    from ganglion.core.errors import ModelNotFound
    from ganglion.registry.files.model_files import files_of
    from ganglion.registry.naming.resolver import EmbeddedSource, LocalFileSource

    source = resolution.source
    if isinstance(source, EmbeddedSource) and local.embedded is not None:
        yield from _embedded(local)
    elif isinstance(source, LocalFileSource):
        stored = local.catalogue.stored_index.by_path.get(source.path)
        if stored is not None:
            yield _stored(resolution.id, stored)
        elif source.path.exists():
            files = tuple(file for file in files_of(source.path) if file.is_file())
            size_bytes = sum(file.stat().st_size for file in files)
            yield _FileToVerify(resolution.id, files, size_bytes, "Get the file again.")
        else:
            raise ModelNotFound(name, hint=f"There is no file {source.path}.")
    else:
        raise ModelNotFound(name, hint=f"It can be downloaded: ganglion models pull {name}")


def _stored(model_id: str, model: "StoredModel") -> _FileToVerify:
    again = {
        "Hugging Face cache": f"ganglion models pull {model.hub_id}:{_tag(model)}",
        "Ollama": f"ollama pull {model.name}",
    }.get(model.store, "Get the file again.")
    return _FileToVerify(model_id, model.files, model.size_bytes, again, error=model.error)


def _tag(model: "StoredModel") -> str:
    return model.path.name if model.format == "gguf" else model.format


def _embedded(local: LocalContext) -> Iterator[_FileToVerify]:
    model, found = local.catalogue.embedded, local.embedded
    assert model is not None
    assert found is not None
    again = f"ganglion models pull {model.id}"
    yield _FileToVerify(model.id, (found.path,), found.path.stat().st_size, again, digest=model.sha256)


def _results(
    suspects: Sequence[_FileToVerify], receipts: "Receipts", report: "Report"
) -> Iterator[_VerifyResult]:
    total_bytes = sum(each.size_bytes for each in suspects)
    before_bytes = 0
    for each in suspects:
        yield _verify_file(each, receipts, partial(_shifted, report, before_bytes, total_bytes))
        before_bytes += each.size_bytes
        report(before_bytes, total_bytes)


def _verify_file(suspect: _FileToVerify, receipts: "Receipts", report: "Report") -> _VerifyResult:
    from ganglion.core.errors import LoadFailed
    from ganglion.registry.files.receipts import UnknownDigest

    files = tuple(str(file) for file in suspect.files)
    is_known, before_bytes = True, 0
    try:
        for file in suspect.files:
            tell = partial(_shifted, report, before_bytes, suspect.size_bytes)
            outcome = receipts.verify(file, is_full=True, digest=suspect.digest, report=tell)
            is_known = is_known and not isinstance(outcome, UnknownDigest)
            before_bytes += file.stat().st_size
    except (LoadFailed, OSError) as error:
        return _VerifyResult(suspect.id, "damaged", files, _reason(error), suspect.again)
    if suspect.error is not None:
        return _VerifyResult(suspect.id, "damaged", files, suspect.error, suspect.again)
    return (
        _VerifyResult(suspect.id, "ok", files)
        if is_known
        else _VerifyResult(suspect.id, "unknown", files, _UNKNOWN)
    )


def _shifted(report: "Report", before_bytes: int, total_bytes: int, done_bytes: int, _: int) -> None:
    """Report a part's progress as that of the whole."""
    report(min(before_bytes + done_bytes, total_bytes), total_bytes)


def _reason(error: Exception) -> str:
    from ganglion.core.errors import LoadFailed

    return error.message if isinstance(error, LoadFailed) else str(error)


def _note(judged: _VerifyResult) -> str | None:
    if judged.reason is None or judged.again is None:
        return judged.reason
    return f"{judged.reason}\nto do: {judged.again}"
