"""`ganglion models verify`: whether the files of models are still what they were, read in full."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from ganglion.cli.models_here import ConfigFile, Here, Json, names_here
from ganglion.cli.talk import say, say_error

if TYPE_CHECKING:
    from ganglion.registry.download import Report
    from ganglion.registry.receipts import Receipts
    from ganglion.registry.resolver import Resolution
    from ganglion.registry.stored import StoredModel

Verdict = Literal["ok", "damaged", "unknown"]
UNKNOWN: Final = "nothing says what its bytes should be"


@dataclass(frozen=True, slots=True)
class Suspect:
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
class Judged:
    """What came of it, as `--json` prints it."""

    id: str
    verdict: Verdict
    files: tuple[str, ...]
    reason: str | None = None
    again: str | None = None


def verify(
    *names: Annotated[
        str, Parameter(help="Models to read (default: all that are here).", completer=names_here)
    ],
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Hash models in full; ends with 1 when one is damaged."""
    from ganglion.cli.output import Row, print_json, print_table
    from ganglion.cli.progress import download_bar

    here = Here.read(config)
    suspects = list(_named(names, here) if names else _all(here))
    receipts = here.hub.receipts
    with download_bar("reading", sum(each.size_bytes for each in suspects)) as report:
        judged = list(_judged(suspects, receipts, report))
    if json:
        print_json(judged)
    else:
        print_table(("model", "verdict"), [Row((each.id, each.verdict), _note(each)) for each in judged])
    damaged = [each for each in judged if each.verdict == "damaged"]
    count = {verdict: sum(each.verdict == verdict for each in judged) for verdict in ("ok", "unknown")}
    say(f"{count['ok']} ok, {len(damaged)} damaged, {count['unknown']} unknown")
    if damaged:
        say_error(f"{', '.join(each.id for each in damaged)}: damaged.", damaged[0].again)
    return 1 if damaged else 0


def _all(here: Here) -> Iterator[Suspect]:
    for model in here.catalogue.stored:
        yield _stored(here.catalogue.id_of(model), model)
    if here.catalogue.embedded is not None and here.embedded is not None:
        yield from _embedded(here)


def _named(names: Sequence[str], here: Here) -> Iterator[Suspect]:
    for name in dict.fromkeys(names):
        yield from _meant(name, here.meant(name), here)


def _meant(name: str, resolution: "Resolution", here: Here) -> Iterator[Suspect]:
    from ganglion.core.errors import ModelNotFound
    from ganglion.registry.resolver import EmbeddedSource, FileSource

    source = resolution.source
    if isinstance(source, EmbeddedSource) and here.embedded is not None:
        yield from _embedded(here)
    elif isinstance(source, FileSource):
        stored = here.catalogue.shelf.by_path.get(source.path)
        if stored is not None:
            yield _stored(resolution.id, stored)
        elif source.path.is_file():
            size_bytes = source.path.stat().st_size
            yield Suspect(resolution.id, (source.path,), size_bytes, "Get the file again.")
        else:
            raise ModelNotFound(name, hint=f"There is no file {source.path}.")
    else:
        raise ModelNotFound(name, hint=f"It can be downloaded: ganglion models pull {name}")


def _stored(model_id: str, model: "StoredModel") -> Suspect:
    again = {
        "Hugging Face cache": f"ganglion models pull {model.hub_id}:{model.path.name}",
        "Ollama": f"ollama pull {model.name}",
    }.get(model.store, "Get the file again.")
    return Suspect(model_id, model.files, model.size_bytes, again, error=model.error)


def _embedded(here: Here) -> Iterator[Suspect]:
    model, found = here.catalogue.embedded, here.embedded
    assert model is not None
    assert found is not None
    again = f"ganglion models pull {model.id}"
    yield Suspect(model.id, (found.path,), found.path.stat().st_size, again, digest=model.sha256)


def _judged(suspects: Sequence[Suspect], receipts: "Receipts", report: "Report") -> Iterator[Judged]:
    total_bytes = sum(each.size_bytes for each in suspects)
    before_bytes = 0
    for each in suspects:
        yield _judge(each, receipts, partial(_shifted, report, before_bytes, total_bytes))
        before_bytes += each.size_bytes
        report(before_bytes, total_bytes)


def _judge(suspect: Suspect, receipts: "Receipts", report: "Report") -> Judged:
    from ganglion.core.errors import LoadFailed
    from ganglion.registry.receipts import Unknown

    files = tuple(str(file) for file in suspect.files)
    is_known, before_bytes = True, 0
    try:
        for file in suspect.files:
            tell = partial(_shifted, report, before_bytes, suspect.size_bytes)
            outcome = receipts.verify(file, is_full=True, digest=suspect.digest, report=tell)
            is_known = is_known and not isinstance(outcome, Unknown)
            before_bytes += file.stat().st_size
    except (LoadFailed, OSError) as error:
        return Judged(suspect.id, "damaged", files, _reason(error), suspect.again)
    if suspect.error is not None:
        return Judged(suspect.id, "damaged", files, suspect.error, suspect.again)
    return Judged(suspect.id, "ok", files) if is_known else Judged(suspect.id, "unknown", files, UNKNOWN)


def _shifted(report: "Report", before_bytes: int, total_bytes: int, done_bytes: int, _: int) -> None:
    """Report a part's progress as that of the whole."""
    report(before_bytes + done_bytes, total_bytes)


def _reason(error: Exception) -> str:
    from ganglion.core.errors import LoadFailed

    return error.message if isinstance(error, LoadFailed) else str(error)


def _note(judged: Judged) -> str | None:
    if judged.reason is None or judged.again is None:
        return judged.reason
    return f"{judged.reason}\nto do: {judged.again}"
