"""The source of the pinned llama.cpp: out of the source package of the binding's wheel, or from the operator.

Law: what is fetched is taken only with the digest that is written here; a folder that the operator names is
theirs to answer for, and the guard of the binding still looks at what is built from it.
"""

import hashlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ganglion.core.errors import EngineUnavailable, InvalidValue
from ganglion.engines.installing.package_index import PackageIndex, run_pip
from ganglion.engines.llama.native.built import PINNED_VERSION, SOURCE_SHA256

_DISTRIBUTION: Final = "xllamacpp"
_INSIDE: Final = PurePosixPath("thirdparty/llama.cpp")
_CHUNK_BYTES: Final = 1 << 20
# The first patch releases of Python 3.11 have no filters; what is unpacked has the digest that we expect.
_FILTER: Final[dict[str, Any]] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def ready_source(
    work: Path, named: Path | None, *, index: PackageIndex, tell: Callable[[str], None], held: tuple[int, ...]
) -> Path:
    """The folder to build from; an earlier attempt's is used again."""
    if named is not None and named.is_dir():
        return _checked(named.resolve())
    folder = work / "source"
    if (folder / "CMakeLists.txt").is_file() and named is None:
        return folder
    with tempfile.TemporaryDirectory(dir=work, prefix="fetch-") as scratch:
        if named is not None:
            archive = named
        else:
            tell(f"fetching the source of llama.cpp ({_DISTRIBUTION} {PINNED_VERSION}, 38 MB)")
            archive = _fetched(Path(scratch), work / "fetch.log", index, tell, held)
        tell("unpacking the source")
        unpacked = Path(scratch) / "unpacked"
        _unpack(archive, unpacked)
        shutil.rmtree(folder, ignore_errors=True)
        _checked(unpacked).replace(folder)
    return folder


def _fetched(
    scratch: Path, log: Path, index: PackageIndex, tell: Callable[[str], None], held: tuple[int, ...]
) -> Path:
    """The source package; pip asks its index as it is configured, and compares the digest."""
    wanted = scratch / "source.txt"
    wanted.write_text(f"{_DISTRIBUTION}=={PINNED_VERSION} --hash=sha256:{SOURCE_SHA256}\n")
    arguments = (
        *("download", "--no-deps", f"--no-binary={_DISTRIBUTION}", "--require-hashes"),
        *("--dest", str(scratch), "-r", str(wanted)),
    )
    try:
        run_pip(
            Path(sys.executable),
            arguments,
            index=index,
            log=log,
            step=lambda words, _: tell(words),
            held=held,
        )
    except EngineUnavailable as error:
        raise EngineUnavailable(
            f"The source of llama.cpp could not be fetched. {error.message}",
            hint=f"{error.hint} Or name a file or folder that you have: --source {_name()}",
        ) from error
    return scratch / _name()


def _name() -> str:
    return f"{_DISTRIBUTION}-{PINNED_VERSION}.tar.gz"


def _unpack(archive: Path, target: Path) -> None:
    """Write llama.cpp's part of a source package to a folder; nothing in it may lead out of there."""
    try:
        if _digest(archive) != SOURCE_SHA256:
            raise InvalidValue(
                f"{archive} is not {_name()}: its SHA-256 differs.",
                param="source",
                hint=f"pip download --no-deps --no-binary {_DISTRIBUTION} {_DISTRIBUTION}=={PINNED_VERSION}",
            )
        with tarfile.open(archive) as package:
            for member in package:
                inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if inside.is_relative_to(_INSIDE):
                    member.name = str(inside.relative_to(_INSIDE))
                    package.extract(member, target, **_FILTER)
    except (OSError, tarfile.TarError) as error:
        raise InvalidValue(f"{archive} cannot be unpacked: {error}.", param="source") from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _checked(folder: Path) -> Path:
    if not (folder / "CMakeLists.txt").is_file() or not (folder / "include" / "llama.h").is_file():
        raise InvalidValue(
            f"{folder} is no source of llama.cpp: it has no CMakeLists.txt beside include/llama.h.",
            param="source",
            hint="Name the folder of llama.cpp itself, or the source package of xllamacpp.",
        )
    return folder
