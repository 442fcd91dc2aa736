"""A build of llama.cpp from nothing to ready: configured, compiled, tried in a child, then put in its place.

Law: what is compiled stays in the work folder until the build is done, so that one that was stopped goes on;
what is tried and passes is what is used. The library finds its parts beside itself, wherever its folder lies.
"""

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import EngineUnavailable, GanglionError, InvalidValue
from ganglion.engines.installing.logged_run import RunResult, run_logged
from ganglion.engines.installing.package_index import PackageIndex, disk_full
from ganglion.engines.installing.place import EnginePlace
from ganglion.engines.installing.receipt import write_receipt
from ganglion.engines.installing.reporter import Reporter
from ganglion.engines.llama.building.source import ready_source
from ganglion.engines.llama.building.toolchain import Toolchain, explain
from ganglion.engines.llama.native.built import LIBRARY_NAMES, PINNED_VERSION, BuildReceipt
from ganglion.engines.llama.native.probe import LibraryReport, probe

_OPTIONS: Final = (
    *("CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=ON"),
    *("LLAMA_BUILD_COMMON=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF"),
    *("LLAMA_BUILD_TOOLS=OFF", "LLAMA_BUILD_SERVER=OFF", "LLAMA_BUILD_APP=OFF"),
    # The parts are found beside the library, where they are put after they were built.
    "CMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)
_SYSTEM_OPTIONS: Final = {
    "Linux": (
        "CMAKE_INSTALL_RPATH=$ORIGIN",
        # Else the CUDA part exports pieces of a static C++ library, and a process that has numpy crashes.
        "CMAKE_SHARED_LINKER_FLAGS=-Wl,--exclude-libs,ALL",
    ),
    "Darwin": ("CMAKE_INSTALL_RPATH=@loader_path",),
}
_PROGRESS: Final = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]\s+(.*)")
_PROBE_S: Final = 120.0
"""The first use of a GPU compiles kernels."""
_DEFINED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(:[A-Z]+)?=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What is to be built, and how."""

    toolchain: Toolchain
    jobs: int
    source: Path | None = None
    """A folder or a source package in place of the pinned one from the index."""
    options: tuple[str, ...] = ()
    """More for CMake, as `NAME=VALUE`."""
    index: PackageIndex = PackageIndex()

    def __post_init__(self) -> None:
        for option in self.options:
            if not _DEFINED.fullmatch(option):
                raise InvalidValue(
                    f"--define takes NAME=VALUE; found {option[:80]!r}.",
                    param="define",
                    hint="--define CMAKE_CUDA_ARCHITECTURES=90",
                )


@dataclass(frozen=True, slots=True)
class Built:
    """A build that is in its place now."""

    library: Path
    report: LibraryReport


def build(request: BuildRequest, place: EnginePlace, reporter: Reporter) -> Built:
    """Build llama.cpp, or go on with a build that was stopped; raises what keeps it from that."""
    place.check_free()
    with place.locked(lambda: reporter.notice("waiting for another build of llama.cpp")) as descriptor:
        try:
            return _Build(request, place, reporter, (descriptor,)).run()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise disk_full(place.link.parent) from error
            raise EngineUnavailable(f"The build failed: {error}.") from error


class _Build:
    """One attempt, in a work folder that outlives it while it does not succeed."""

    def __init__(
        self, request: BuildRequest, place: EnginePlace, reporter: Reporter, held: tuple[int, ...]
    ) -> None:
        self._request = request
        self._place = place
        self._reporter = reporter
        self._held = held
        name = f"llama-{PINNED_VERSION}-{request.toolchain.backend}"
        self._work = place.link.parent / ".build" / name
        self._folder = place.beside(f"{PINNED_VERSION}-{request.toolchain.backend}")
        if self._folder == place.folder:
            # Workers that run have its files open, and the next one must not find half of them.
            self._folder = place.beside(f"{PINNED_VERSION}-{request.toolchain.backend}-again")

    def run(self) -> Built:
        """Do all of it."""
        self._work.mkdir(parents=True, exist_ok=True)
        source = ready_source(
            self._work,
            self._request.source,
            index=self._request.index,
            tell=lambda words: self._reporter.step(words, 0, 0),
            held=self._held,
        )
        self._configure(source)
        self._compile()
        library = self._collect()
        report = self._try(library)
        write_receipt(
            self._folder,
            BuildReceipt(
                version=PINNED_VERSION,
                backend=self._request.toolchain.backend,
                library=library.name,
                options=self._request.options,
                compiler=self._request.toolchain.compiler,
                devices=tuple(f"{each.name} {each.description}" for each in report.devices),
                source=None if self._request.source is None else str(self._request.source),
            ),
        )
        self._place.point_at(self._folder)
        shutil.rmtree(self._work, ignore_errors=True)
        return Built(self._place.link / library.name, report)

    def _configure(self, source: Path) -> None:
        toolchain = self._request.toolchain
        self._reporter.step("configuring", 0, 0)
        options = (*_OPTIONS, *_SYSTEM_OPTIONS.get(os.uname().sysname, ()), *toolchain.options)
        command = (str(toolchain.cmake), "-S", str(source), "-B", str(self._work / "build"))
        told = (f"-D{option}" for option in (*options, *self._request.options))
        cache = self._work / "build" / "CMakeCache.txt"
        if cache.is_file() and f"CMAKE_HOME_DIRECTORY:INTERNAL={source}" not in cache.read_text():
            shutil.rmtree(self._work / "build")
        generator = () if cache.is_file() else ("-G", toolchain.generator)
        self._run((*command, *generator, *told), "CMake could not configure llama.cpp")

    def _compile(self) -> None:
        cmake = str(self._request.toolchain.cmake)
        command = (cmake, "--build", str(self._work / "build"), "--target", "llama")
        self._run((*command, "--parallel", str(self._request.jobs)), "llama.cpp could not be compiled")

    def _collect(self) -> Path:
        """Put the library and its parts into the folder that they are used from."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for part in sorted((self._work / "build" / "bin").glob("lib*")):
            if ".so" in part.name or part.suffix == ".dylib":
                shutil.copy2(part, self._folder / part.name, follow_symlinks=False)
        for name in LIBRARY_NAMES:
            if (self._folder / name).exists():
                return self._folder / name
        raise EngineUnavailable(
            f"The build ended and left no {LIBRARY_NAMES[0]} in {self._work / 'build' / 'bin'}.",
            hint=f"What it said is in {self._log}.",
        )

    def _try(self, library: Path) -> LibraryReport:
        self._reporter.step("trying the library", 0, 0)
        try:
            return probe(None, library=library, timeout_s=_PROBE_S)
        except GanglionError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise EngineUnavailable(
                f"llama.cpp was built and is not used: {error.message}",
                hint="Build the pinned source (without --source). If it is that one, delete "
                f"{self._work} and build again.",
            ) from error

    @property
    def _log(self) -> Path:
        return self._work / "build.log"

    def _run(self, command: tuple[str, ...], failure: str) -> None:
        done = run_logged(
            command,
            self._log,
            self._on_line,
            environment=os.environ | self._request.toolchain.environment,
            held=self._held,
        )
        if done.code:
            raise _build_failure(done, failure)

    def _on_line(self, line: str) -> None:
        found = _PROGRESS.match(line)
        if found is not None:
            self._reporter.step("compiling", int(found[1]), int(found[2] or 100))


def _build_failure(done: RunResult, failure: str) -> GanglionError:
    if "No space left on device" in done.text:
        return disk_full(done.log.parent)
    known = explain(done.text)
    if known is not None:
        return EngineUnavailable(
            f"{failure}: it lacks {known[0]}.", hint=f"{known[1]}. All it said is in {done.log}."
        )
    signs = re.compile(r"error|FAILED|fatal", re.IGNORECASE)
    lines = [line.strip() for line in done.lines if line.strip()]
    said = next(
        (line for line in lines if signs.search(line)), lines[-1] if lines else f"exit code {done.code}"
    )
    return EngineUnavailable(f"{failure}: {said.rstrip('.')[:300]}.", hint=f"All it said is in {done.log}.")
