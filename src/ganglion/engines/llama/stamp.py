"""What makes saved cells fit: a name for a model, the library and how its cache is kept."""

import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

STAMP_BYTES: Final = 16
SAMPLES: Final = 64
SAMPLE_BYTES: Final = 4096
PART_OF_MODEL: Final = re.compile(r"-00001-of-(\d{5})\.gguf$")


def stamp_of(
    model: Path, library: Path, kv_type: str, gpu_layers: int, *, is_portable: bool = False
) -> bytes:
    """A name for everything that makes saved cells fit; a change of any of it gives another.

    A portable one is the same on every machine with the same files, whenever these were written there.
    """
    digest = blake2b(digest_size=STAMP_BYTES)
    for path in (*_files_of(model), library):
        digest.update(_identity(path, is_portable=is_portable))
    digest.update(f"{kv_type} {gpu_layers}".encode())
    return digest.digest()


def _files_of(model: Path) -> tuple[Path, ...]:
    """All files of a model that comes in parts, given its first."""
    found = PART_OF_MODEL.search(model.name)
    if found is None:
        return (model,)
    stem = model.name[: found.start()]
    count = int(found[1])
    return tuple(model.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))


def _identity(path: Path, *, is_portable: bool) -> bytes:
    """Size, time of change and samples of a file's content.

    Two trainings of one model differ in neither size nor header, and a copy may keep the time of what it
    replaces: so samples of the weights count too. Hashing all of them would cost as much as loading them.
    """
    status = path.stat()
    changed_ns = 0 if is_portable else status.st_mtime_ns
    digest = blake2b(f"{status.st_size} {changed_ns}".encode(), digest_size=32)
    with path.open("rb", buffering=0) as file:
        for number in range(SAMPLES):
            file.seek(status.st_size * number // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
