"""The checks of `ganglion doctor`, one function each."""

import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from ganglion import __version__
from ganglion import config as configuration
from ganglion.cli.model_builder import check_engines
from ganglion.cli.system.engine_advice import EngineSituation, advise
from ganglion.cli.system.library_choice import settle_library, unusable_build
from ganglion.cli.system.this_machine import describe_machine, has_nvidia_gpu
from ganglion.config import Config
from ganglion.core.errors import EngineUnavailable, GanglionError
from ganglion.core.home import home_folder
from ganglion.core.machine import Machine, Memory
from ganglion.engines.llama.native.probe import LibraryReport, probe
from ganglion.engines.resources import read_memory
from ganglion.engines.vllm.installed import NAME as VLLM
from ganglion.engines.vllm.installed import describe as describe_vllm
from ganglion.registry.hub import embedded
from ganglion.registry.hub.environment import cache_folder, token, token_source
from ganglion.registry.machine.describe import has_amd_card, native_engine
from ganglion.registry.naming.manifest import read_manifest
from ganglion.server.bind import BindFailed, InsecureBind, bind, check_bind
from ganglion.server.settings import ServerSettings

_CheckStatus = Literal["ok", "warn", "fail"]

_MEBIBYTE: Final = 2**20
_OLDEST_PYTHON: Final = (3, 11)
_LITTLE_DISK_BYTES: Final = 5 * 2**30
"""Less than one model of 8 billion weights in 4 bits."""
_NO_DISK_BYTES: Final = 256 * _MEBIBYTE
"""The embedded model and its partial file do not fit."""
_LITTLE_MEMORY_BYTES: Final = 2 * 2**30
_NO_MEMORY_BYTES: Final = 512 * _MEBIBYTE
"""The embedded model with its cache does not fit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it."""

    check: str
    verdict: _CheckStatus
    finding: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class _CheckContext:
    """The inputs of all checks."""

    config: Config
    home: Path
    environment: Mapping[str, str]
    machine: Machine
    memory: Memory


def run_checks(config_file: Path | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Run every check and yield its finding; a failure does not stop the others."""
    home = home_folder(environment)
    config, finding = _configuration(config_file, home / "config.toml", environment)
    yield _python()
    yield finding
    yield from _manifest(home)
    yield _home(home)
    yield _disk("disk of home", home)
    yield _disk("disk of the hub cache", cache_folder(environment))
    context = _CheckContext(config, home, environment, describe_machine(), read_memory())
    yield _processor(context.machine)
    yield _memory(context.memory)
    works, finding = _library(context)
    yield finding
    yield from _built()
    yield _accelerator(context, works)
    yield _engine(context, works)
    yield from _ports(context.config)
    yield _token(environment)


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        return Finding("python", "fail", found, f"Install Python {oldest} or newer.")
    return Finding("python", "ok", found)


def _configuration(
    named: Path | None, default: Path, environment: Mapping[str, str]
) -> tuple[Config, Finding]:
    """The config to check with, the defaults where it is wrong."""
    file = named or (default if default.is_file() else None)
    try:
        config = configuration.load(file, environment)
    except GanglionError as error:
        return Config(), Finding("config", "fail", error.message, error.hint)
    if file is None:
        return config, Finding("config", "ok", f"no {default}; defaults and environment")
    return config, Finding("config", "ok", f"{file} is valid")


def _manifest(home: Path) -> Iterator[Finding]:
    """The list of models, if there is one."""
    file = home / "models.yaml"
    if not file.exists():
        return
    try:
        check_engines(read_manifest(file))
    except GanglionError as error:
        yield Finding("models.yaml", "fail", error.message, error.hint)
    else:
        yield Finding("models.yaml", "ok", f"{file} is valid")


def _home(home: Path) -> Finding:
    """Check that the folder can be written; it is not created."""
    folder = _nearest(home)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "home",
            "fail",
            f"{home} cannot be written: {error.strerror}",
            "Set GANGLION_HOME to a folder that can, or correct its permissions.",
        )
    return Finding("home", "ok", f"{home} can be written" if folder == home else f"{home} can be made")


def _disk(check: str, folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(_nearest(folder)).free
    except OSError as error:
        return Finding(check, "fail", f"{folder} cannot be looked at: {error.strerror}")
    found = f"{_size(free)} free for {folder}"
    if free < _LITTLE_DISK_BYTES:
        verdict: _CheckStatus = "fail" if free < _NO_DISK_BYTES else "warn"
        return Finding(check, verdict, found, "Free some space: a model takes from 0.1 GiB to 50 GiB.")
    return Finding(check, "ok", found)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    folder = folder.absolute()
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)


def _processor(machine: Machine) -> Finding:
    cpu = machine.cpu
    flags = ", ".join(cpu.flags) or "no known instruction sets"
    found = f"{cpu.model} ({cpu.architecture}), {cpu.cores} cores to use; {flags}"
    if cpu.architecture in ("x86_64", "AMD64") and cpu.flags and "avx2" not in cpu.flags:
        return Finding("processor", "warn", found, "Without AVX2 models are slow; prefer small ones.")
    return Finding("processor", "ok", found)


def _memory(memory: Memory) -> Finding:
    found = f"{_size(memory.free_bytes)} free of {_size(memory.total_bytes)}"
    if memory.free_bytes < _LITTLE_MEMORY_BYTES:
        verdict: _CheckStatus = "fail" if memory.free_bytes < _NO_MEMORY_BYTES else "warn"
        return Finding("memory", verdict, found, "End other programs, or raise the container's limit.")
    return Finding("memory", "ok", found)


def _library(context: _CheckContext) -> tuple[LibraryReport | None, Finding]:
    model = embedded.find(embedded.SMOLLM2, context.home / "cache")
    settle_library()
    try:
        works = probe(None if model is None else model.path)
    except EngineUnavailable as error:
        return None, Finding("llama.cpp", "fail", error.message, error.hint)
    engine = native_engine(context.machine.engines)
    version = "" if engine is None else engine.version
    if model is None:
        found = f"{version} loads; the embedded model is not here and is fetched when it is first needed"
    else:
        found = f"{version} loads and reads the embedded model ({works.vocabulary} tokens)"
    return works, Finding("llama.cpp", "ok", found)


def _built() -> Iterator[Finding]:
    """What was built here, where it cannot be used."""
    found = unusable_build()
    if found is not None:
        yield Finding("built llama.cpp", "warn", found.problem, found.hint)


def _engine(context: _CheckContext, works: LibraryReport | None) -> Finding:
    """Which engine would serve this machine best."""
    vllm = describe_vllm(VLLM, __version__, context.environment)
    advice = advise(
        EngineSituation(
            has_nvidia=has_nvidia_gpu(),
            has_amd=has_amd_card(Path("/")),
            has_rocm=Path("/dev/kfd").exists(),
            is_apple=platform.system() == "Darwin" and platform.machine() == "arm64",
            llama_offloads=works is not None and works.can_offload,
            vllm_version=None if vllm is None else vllm.version,
            vllm_has_cuda=vllm is not None and (vllm.accelerators is None or "cuda" in vllm.accelerators),
        )
    )
    return Finding("best engine", "ok", advice.best, advice.to_do)


def _accelerator(context: _CheckContext, works: LibraryReport | None) -> Finding:
    machine = context.machine
    if machine.accelerator_unusable is not None:
        finding, _, advice = machine.accelerator_unusable.partition(". ")
        return Finding("accelerator", "warn", finding, advice or None)
    if machine.accelerator is None:
        return Finding("accelerator", "ok", "none; models run on the processor")
    cards = ", ".join(f"{device.name} ({device.memory_total_mb} MiB)" for device in machine.devices)
    found = f"{cards}; driver {machine.accelerator.driver}, {machine.accelerator.runtime}"
    if works is not None and not works.can_offload:
        return Finding(
            "accelerator",
            "warn",
            f"{found}; the library that loaded cannot use it",
            "Build llama.cpp for it (ganglion engines build llama --cuda). For one that was built, check "
            "that the CUDA runtime is installed and new enough.",
        )
    if context.config.engine.gpu_layers == 0:
        return Finding(
            "accelerator", "warn", f"{found}; engine.gpu_layers is 0", "Leave --gpu-layers out to use it."
        )
    return Finding("accelerator", "ok", found)


def _ports(config: Config) -> Iterator[Finding]:
    server = config.server
    try:
        check_bind(server)
    except InsecureBind as error:
        yield Finding("access", "fail", error.message, error.hint)
    yield _port(server.host, server.port, "http", "fail", "--port")
    if server.has_grpc:
        beside = 0 if server.port == 0 else server.port + 1
        sessions = beside if server.grpc_port is None else server.grpc_port
        yield _port(server.host, sessions, "sessions", "fail", "--grpc-port")


def _port(host: str, port: int, purpose: str, if_taken: _CheckStatus, flag: str) -> Finding:
    check = f"port {port} ({purpose})"
    if port == 0:
        return Finding(check, "ok", "a free one is taken")
    try:
        bind(ServerSettings(host=host, port=port)).close()
    except BindFailed as error:
        listener = _listener(port)
        if listener is None:
            return Finding(check, if_taken, error.message, f"Choose another address or port ({flag}).")
        if _is_node(listener):
            return Finding(check, "ok", f"a node listens here already (pid {listener.pid})")
        finding = f"{listener.name()} listens here (pid {listener.pid})"
        return Finding(check, if_taken, finding, f"End it, or choose another port with {flag}.")
    return Finding(check, "ok", f"free on {host}")


def _listener(port: int) -> psutil.Process | None:
    """The process that listens on a port, as far as this user may know."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if is_listening and connection.pid:
                return psutil.Process(connection.pid)
    return None


def _is_node(process: psutil.Process) -> bool:
    # Read and never shown: somebody else's command line may hold their keys.
    with suppress(psutil.Error):
        words = [Path(word).name for word in process.cmdline()]
        return "serve" in words and ("ganglion" in words or "ganglion.cli.main" in words)
    return False


def _token(environment: Mapping[str, str]) -> Finding:
    """Say whether a download would show a token; the token itself is never printed."""
    if token(environment) is None:
        return Finding("hub token", "ok", "none; gated and private models need HF_TOKEN")
    return Finding("hub token", "ok", token_source(environment))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
