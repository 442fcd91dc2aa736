"""pip as a program: how it is asked, how far it is, and its failures in words that say what to do.

Law: an address of an index may hold a password, so it travels in the environment, where no list of processes
shows it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import EngineUnavailable, GanglionError, StorageFull
from ganglion.engines.installing.logged_run import RunResult, run_logged

_LINE: Final = re.compile(r"(Collecting|Downloading|Ignoring|Requirement already satisfied:)\s+(\S+)(.*)")
_ABSENT: Final = re.compile(r"No matching distribution found for ([^\s(]+)")
_WRONG_HASH: Final = "DO NOT MATCH THE HASHES"
_NETWORK: Final = (
    *("Retrying (", "Max retries exceeded", "Read timed out", "ConnectionError", "Connection refused"),
    *("ProxyError", "SSLError", "NewConnectionError", "Network is unreachable", "IncompleteRead"),
    *("Connection broken", "Connection aborted", "ReadTimeoutError"),
)


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """Where packages come from; what is left out is as pip is configured."""

    url: str | None = None
    extra_urls: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment of a pip that uses it."""
        chosen = dict(os.environ)
        if self.url is not None:
            chosen |= {"PIP_INDEX_URL": self.url, "PIP_EXTRA_INDEX_URL": " ".join(self.extra_urls)}
        elif self.extra_urls:
            chosen["PIP_EXTRA_INDEX_URL"] = " ".join(self.extra_urls)
        # What would change where and how it installs; the index, proxies, certificates and the cache stay.
        for name in ("PIP_TARGET", "PIP_USER", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PYTHONPATH"):
            chosen.pop(name, None)
        return chosen


class PackageAbsent(EngineUnavailable):
    """The index has no such package for this Python and this machine."""


PackageStep = Callable[[str, bool], None]
"""Told what pip is doing, and whether with that it turned to another package."""


def run_pip(
    python: Path,
    arguments: tuple[str, ...],
    *,
    index: PackageIndex,
    log: Path,
    step: PackageStep,
    held: tuple[int, ...] = (),
) -> None:
    """Run pip under a Python; raises what it says in an error of ours."""
    command = (str(python), "-m", "pip", *arguments)
    common = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")

    def on_line(line: str) -> None:
        found = _LINE.match(line.strip())
        if found is not None:
            size = found[3] if found[1] == "Downloading" else ""
            step(f"{found[1].lower().removesuffix(':')} {found[2]}{size}", found[1] != "Downloading")
        elif line.startswith("Installing collected"):
            step("unpacking", False)

    done = run_logged(
        (*command, *common), log, on_line, environment=index.environment() | {"LC_ALL": "C.UTF-8"}, held=held
    )
    if done.code:
        raise pip_failure(done)


def pip_failure(done: RunResult) -> GanglionError:
    """The error for a pip that failed, from what it said last."""
    text = done.text
    if "No space left on device" in text:
        return disk_full(done.log.parent)
    if _WRONG_HASH in text:
        return EngineUnavailable(
            f"The index sent a file that is not the one that was locked: {_wrong_package(done.lines)}.",
            hint="Nothing of it was installed. Take another index with --index-url, or report it: "
            "a file that changed under its name may have been tampered with.",
        )
    if any(sign in text for sign in _NETWORK):
        return EngineUnavailable(
            f"The package index could not be reached: {_last_error(done.lines)}.",
            hint="Check the network and --index-url, then run the same command: it goes on from there.",
        )
    absent = _ABSENT.search(text)
    if absent is not None:
        return PackageAbsent(
            f"The package index has no {absent[1]} for this Python and this machine.",
            hint="Choose another Python with --python, or an index that has it with --extra-index-url.",
        )
    if "No module named pip" in text:
        return EngineUnavailable(
            f"{done.lines[-1]}.", hint="Choose a Python that has pip with --python (python -m ensurepip)."
        )
    return EngineUnavailable(f"pip failed: {_last_error(done.lines)}.", hint=f"All it said is in {done.log}.")


def disk_full(folder: Path) -> StorageFull:
    """The error for a disk that has no room left."""
    return StorageFull(
        f"There is no space left for {folder}.",
        hint="Free some space, or set GANGLION_HOME to a folder on a larger disk, and run it again.",
    )


def _last_error(lines: tuple[str, ...]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return (errors or said or ["it said nothing"])[-1].rstrip(".")[:300]


def _wrong_package(lines: tuple[str, ...]) -> str:
    at = next(number for number, line in enumerate(lines) if _WRONG_HASH in line)
    named = next((line.strip() for line in lines[at + 1 :] if line.strip()), "unknown")
    return re.sub(r"\s*(\(from .*\)|:)?:?$", "", named.partition(" from ")[0])
