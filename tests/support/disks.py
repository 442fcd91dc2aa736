"""Small disks to break: a loop image with ext4 on it, a tmpfs that fills up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

IMAGE_BYTES = 64 * 2**20


def make_image(image: Path) -> None:
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)


@contextmanager
def mounted(folder: Path, *words: str | Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", *words, folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@cache
def why_no_mounts() -> str | None:
    """Why a disk cannot be mounted here; None where it can."""
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip() or None


@cache
def why_no_loops() -> str | None:
    """Why an image cannot be mounted here; None where it can."""
    done = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return why_no_mounts() or done.stderr.strip() or None
