"""An environment from nothing to ready: made beside its place, filled in batches, tried, then named.

Law: a batch counts as installed once the journal says so. An installation that was killed goes on after the
last one, and installs the batch it was at anew, over whatever lies there.
"""

import errno
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import EngineUnavailable, InvalidValue, StorageFull
from ganglion.engines.installing.environments import EnvironmentKind, Flavour, FlavourName
from ganglion.engines.installing.lock_file import LockFile, Pin, read_lock_file
from ganglion.engines.installing.logged_run import run_logged
from ganglion.engines.installing.other_python import PythonFacts, ask_python, import_engine
from ganglion.engines.installing.package_index import PackageAbsent, PackageIndex, disk_full, run_pip
from ganglion.engines.installing.place import EnginePlace, running_from
from ganglion.engines.installing.receipt import EnvironmentReceipt, Findings, read_receipt, write_receipt
from ganglion.engines.installing.reporter import Reporter

_JOURNAL: Final = "ganglion.journal"
_LOG: Final = "ganglion.log"
_PIP: Final = (
    *("install", "--require-hashes", "--no-deps", "--only-binary=:all:"),
    # Compiling everything takes as long as fetching it; what is imported compiles itself.
    "--no-compile",
)


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What is to be installed, and how."""

    name: str
    kind: EnvironmentKind
    flavour_name: FlavourName
    python: Path | None = None
    """The Python to make it with; None for a fitting one that is here."""
    index: PackageIndex = PackageIndex()
    first_index_url: str | None = None
    """In place of the public index of the packages that are installed first."""
    lock_path: Path | None = None
    """A lock file in place of ours."""
    is_anew: bool = False
    """Install again what is installed already."""

    @property
    def flavour(self) -> Flavour:
        """The chosen one."""
        return self.kind.flavours[self.flavour_name]


@dataclass(frozen=True, slots=True)
class Installed:
    """What is in its place now."""

    folder: Path
    findings: Findings
    was_here: bool


def install(request: InstallRequest, place: EnginePlace, reporter: Reporter) -> Installed:
    """Install an environment, or go on where an attempt was killed; raises what keeps it from that."""
    place.check_free()
    lock = read_lock_file(request.lock_path or request.kind.lock_path(request.flavour))
    python = _python(request)
    key = f"{request.flavour_name}-{lock.digest[:12]}-py{python.version}"
    waiting = f"waiting for another installation of {request.name}"
    with place.locked(lambda: reporter.notice(waiting)) as held:
        here = _current(place, key, request)
        if here is not None:
            return here
        folder = place.beside(key)
        if folder == place.folder or running_from(folder):
            # An engine that runs is not written over: the new one is made under another name.
            folder = place.beside(f"{key}-again")
        _Installation(request, lock, python, folder, held=held, reporter=reporter).run()
        findings = _checked(request, folder)
        write_receipt(folder, EnvironmentReceipt(request.name, request.flavour_name, lock.digest, findings))
        place.point_at(folder)
        return Installed(place.link, findings, was_here=False)


def _current(place: EnginePlace, key: str, request: InstallRequest) -> Installed | None:
    """What is installed already, if it is what is asked for and still works."""
    folder = place.folder
    receipt = read_receipt(folder, EnvironmentReceipt)
    if folder is None or receipt is None or request.is_anew:
        return None
    if not folder.name.removesuffix("-again").endswith(key):
        return None
    with suppress(EngineUnavailable):
        findings = import_engine(folder / "bin" / "python", request.kind.check)
        return Installed(place.link, findings, was_here=True)
    return None


def _python(request: InstallRequest) -> PythonFacts:
    """The Python to make the environment with: the named one, ours, or one of its versions on the path."""
    if request.python is not None:
        return _fitting(ask_python(request.python), request)
    try:
        return _fitting(ask_python(Path(sys.executable)), request)
    except InvalidValue:
        for version in request.flavour.pythons:
            found = shutil.which(f"python{version}")
            with suppress(InvalidValue):
                if found is not None:
                    return _fitting(ask_python(Path(found)), request)
        raise


def _fitting(python: PythonFacts, request: InstallRequest) -> PythonFacts:
    flavour = request.flavour
    is_ours = request.lock_path is None
    if python.system != "Linux" or (is_ours and python.machine not in flavour.machines):
        raise InvalidValue(
            f"{request.name} for {request.flavour_name} can be installed on Linux "
            f"({', '.join(flavour.machines)}); this is {python.system} on {python.machine}.",
            hint="Run it on another machine and put a gateway before it, or use the bundled llama.cpp.",
        )
    if is_ours and python.version not in flavour.pythons:
        raise InvalidValue(
            f"{request.name} for {request.flavour_name} is locked for Python {', '.join(flavour.pythons)}; "
            f"{python.path} is {python.version}.",
            param="python",
            hint=f"Name another one: --python python{flavour.pythons[-1]}",
        )
    if not python.has_venv:
        raise InvalidValue(
            f"{python.path} has no venv module.",
            param="python",
            hint=f"apt install python{python.version}-venv, or name another Python with --python.",
        )
    return python


def _checked(request: InstallRequest, folder: Path) -> Findings:
    try:
        return import_engine(folder / "bin" / "python", request.kind.check)
    except EngineUnavailable as error:
        raise EngineUnavailable(
            f"{request.name} was installed and does not work: {error.message}",
            hint=f"It is not used. Its packages lie in {folder}; the same command installs them again.",
        ) from error


class _Installation:
    """One attempt, in the folder that it makes or goes on with."""

    def __init__(
        self,
        request: InstallRequest,
        lock: LockFile,
        python: PythonFacts,
        folder: Path,
        *,
        held: int,
        reporter: Reporter,
    ) -> None:
        self._request = request
        self._batches = lock.batches(request.flavour.first)
        self._python = python
        self._folder = folder
        self._held = held
        self._reporter = reporter
        self._total = len(lock.pins)
        self._done = 0

    def run(self) -> None:
        """Fill the folder; what is there already is kept."""
        try:
            self._run()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise disk_full(self._folder) from error
            raise EngineUnavailable(f"{self._folder} cannot be written: {error.strerror}.") from error

    def _run(self) -> None:
        finished = self._finished()
        if finished is None:
            self._begin()
            finished = 0
        elif finished:
            self._reporter.notice(f"going on from batch {finished + 1} of {len(self._batches)}")
        for number, batch in enumerate(self._batches):
            if number < finished:
                self._done += len(batch)
                continue
            # Where an attempt was killed a package may look installed and be half there.
            self._install(number, batch, over=("--ignore-installed",) if 0 < finished == number else ())
            self._journal(number + 1)

    def _finished(self) -> int | None:
        """How many batches an earlier attempt installed; None where there is nothing to go on with."""
        try:
            words = (self._folder / _JOURNAL).read_text().split()
        except OSError:
            return None
        is_whole = len(words) == 1 and words[0].isdecimal() and (self._folder / "bin" / "python").exists()
        # All of them installed and no engine made of it: it did not import, so all is installed again.
        return int(words[0]) if is_whole and int(words[0]) < len(self._batches) else None

    def _journal(self, finished: int) -> None:
        draft = self._folder / f".{_JOURNAL}"
        draft.write_text(f"{finished}\n")
        draft.replace(self._folder / _JOURNAL)

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder.parent).free
        if self._request.lock_path is None and free < self._request.flavour.needed_bytes:
            raise StorageFull(
                f"{self._request.name} needs {self._request.flavour.needed_bytes >> 30} GiB of disk while it "
                f"is installed; {self._folder.parent} has {free / 2**30:.1f} GiB.",
                hint="Free some space, or set GANGLION_HOME to a folder on a larger disk.",
            )
        self._reporter.step("making the environment", 0, self._total)
        self._folder.mkdir()
        done = run_logged(
            (str(self._python.path), "-I", "-m", "venv", str(self._folder)),
            self._folder / _LOG,
            lambda _: None,
            held=(self._held,),
        )
        if done.code:
            raise EngineUnavailable(
                f"The environment could not be made: {done.lines[-1] if done.lines else done.code}.",
                hint=f"Install the venv module of Python {self._python.version}, or name another --python.",
            )
        self._journal(0)

    def _install(self, number: int, batch: tuple[Pin, ...], over: tuple[str, ...]) -> None:
        wanted = self._folder / f"ganglion.batch-{number + 1}.txt"
        wanted.write_text("\n".join(pin.text for pin in batch) + "\n")
        arguments = (*_PIP, *over, "-r", str(wanted))
        first_url = self._request.first_index_url or self._request.flavour.first_index_url
        is_first = batch[0].name in self._request.flavour.first
        try:
            self._pip(arguments, self._request.index, len(batch))
        except PackageAbsent:
            if not is_first or first_url is None:
                raise
            self._reporter.notice(f"{batch[0].name} {batch[0].version} comes from {first_url}")
            self._pip(arguments, PackageIndex(first_url), len(batch))
        wanted.unlink()
        self._done += len(batch)
        self._reporter.step(f"batch {number + 1} of {len(self._batches)} installed", self._done, self._total)

    def _pip(self, arguments: tuple[str, ...], index: PackageIndex, most: int) -> None:
        seen = 0

        def step(words: str, is_next: bool) -> None:
            nonlocal seen
            seen = min(seen + is_next, most)
            # A package counts once pip has turned to the one after it.
            self._reporter.step(words, self._done + max(seen - 1, 0), self._total)

        run_pip(
            self._folder / "bin" / "python",
            arguments,
            index=index,
            log=self._folder / _LOG,
            step=step,
            held=(self._held,),
        )
