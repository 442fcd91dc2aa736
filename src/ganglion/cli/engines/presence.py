"""Every engine and library of this machine, with what it can use and why one cannot be used.

Law: nothing native and nothing of an engine is loaded into this process; what has to be tried is tried in a
child that may die of it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ganglion import __version__
from ganglion.core.errors import EngineUnavailable, GanglionError
from ganglion.core.home import engine_folder
from ganglion.engines.installing.environments import ENVIRONMENTS, EnvironmentKind, EnvironmentName
from ganglion.engines.installing.other_python import ask_python, import_engine
from ganglion.engines.installing.receipt import EnvironmentReceipt, Findings, read_receipt
from ganglion.engines.llama.native.built import IGNORE_VARIABLE, built_library, rebuild_command
from ganglion.engines.llama.native.library import bundled_path, library_path
from ganglion.engines.llama.native.library_files import bundled_version
from ganglion.engines.llama.native.probe import probe
from ganglion.engines.table import ENGINES, EngineName
from ganglion.engines.vllm.installed import PYTHON_VARIABLE, python_of, version_of


@dataclass(frozen=True, slots=True)
class EnginePresence:
    """One engine, or one library of an engine, as it is here."""

    engine: EngineName
    source: str
    """Where it comes from: `bundled`, `built`, `installed`, the variable that names it, or `absent`."""
    version: str | None
    path: str | None
    is_used: bool
    """Whether a node that starts now uses it."""
    devices: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()
    problem: str | None = None
    """Why it cannot be used, or is not."""
    hint: str | None = None


def engines_here(environment: Mapping[str, str], *, is_thorough: bool) -> Iterator[EnginePresence]:
    """Each engine with each of its libraries; thorough also imports what takes long to import."""
    for name, found in (
        *(("llama", each) for each in _llama(environment)),
        ("vllm", _environment("vllm", environment, is_thorough)),
        ("echo", EnginePresence("echo", "bundled", __version__, None, is_used=True, devices=("CPU",))),
    ):
        kind = ENGINES[found.engine]
        assert found.engine == name
        yield replace(found, formats=kind.formats, abilities=kind.abilities)


def _llama(environment: Mapping[str, str]) -> Iterator[EnginePresence]:
    override = environment.get("GANGLION_LIBLLAMA")
    used = _path_or_none()
    if override:
        found = EnginePresence("llama", "GANGLION_LIBLLAMA", None, override, is_used=True)
        yield _tried(found, Path(override))
    built = built_library(environment)
    if built is not None:
        is_used = used == built.path and not environment.get(IGNORE_VARIABLE)
        found = EnginePresence("llama", "built", built.receipt.version, str(built.path), is_used=is_used)
        if built.problem is not None:
            again = f"Build it again: {rebuild_command(built.receipt)}"
            yield replace(found, is_used=False, problem=f"Not used: {built.problem}.", hint=again)
        else:
            yield _tried(found, built.path, again=rebuild_command(built.receipt))
    try:
        path = bundled_path()
    except EngineUnavailable as error:
        yield EnginePresence(
            "llama", "bundled", None, None, is_used=False, problem=error.message, hint=error.hint
        )
    else:
        found = EnginePresence("llama", "bundled", bundled_version(), str(path), is_used=used == path)
        yield _tried(found, path)


def _path_or_none() -> Path | None:
    try:
        return library_path()
    except EngineUnavailable:
        return None


def _tried(found: EnginePresence, library: Path, *, again: str | None = None) -> EnginePresence:
    try:
        report = probe(None, library=library)
    except GanglionError as error:
        hint = error.hint if again is None else f"Build it again: {again}"
        return replace(found, problem=error.message, hint=hint)
    devices = tuple(
        f"{each.name} ({each.description}{f', {each.total_bytes >> 20} MiB' if each.total_bytes else ''})"
        for each in report.devices
    )
    return replace(found, devices=devices)


def _environment(name: EnvironmentName, environment: Mapping[str, str], is_thorough: bool) -> EnginePresence:
    kind = ENVIRONMENTS[name]
    python = python_of(None, environment)
    chosen = environment.get(PYTHON_VARIABLE)
    install = f"Install it: ganglion engines install {name}"
    source = PYTHON_VARIABLE if chosen else "installed"
    version = version_of(python)
    found = EnginePresence(name, source, version, str(python), is_used=version is not None)
    if version is None:
        if chosen:
            problem, hint = f"{python} has no {name}.", f"Name another Python in {PYTHON_VARIABLE}."
        elif engine_folder(name, environment).is_symlink():
            problem, hint = f"The environment in {engine_folder(name, environment)} is damaged.", install
        else:
            return replace(found, source="absent", path=None, problem="Not installed.", hint=install)
        return replace(found, problem=problem, hint=hint)
    try:
        ask_python(python)
        receipt = read_receipt(python.parent.parent, EnvironmentReceipt)
        findings = _found(python, kind, receipt, is_thorough)
    except GanglionError as error:
        return replace(found, is_used=False, problem=error.message, hint=f"{install} --again")
    return found if findings is None else replace(found, devices=_devices(findings))


def _found(
    python: Path, kind: EnvironmentKind, receipt: EnvironmentReceipt | None, is_thorough: bool
) -> Findings | None:
    """What its Python finds now, or found when it was installed; None where neither is known."""
    if is_thorough:
        return import_engine(python, kind.check)
    return None if receipt is None else receipt.found


def _devices(found: Findings) -> tuple[str, ...]:
    return found.devices or (found.platform.upper() or "unknown",)


def this_machines_engines(*, is_thorough: bool) -> tuple[EnginePresence, ...]:
    """With the environment of this process."""
    return tuple(engines_here(os.environ, is_thorough=is_thorough))
