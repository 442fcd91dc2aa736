"""vLLM for tests: its environment where there is one, and engines over the embedded model as a checkpoint."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.watchdog import WorkerLimits
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.engines.vllm_settings import VllmSettings
from ganglion.registry.files.safetensors import read_facts
from support.checkpoint_files import write_checkpoint
from support.embedded_model import embedded_model
from support.waiting import until

CHECKOUT = Path(__file__).parents[2]
ABSENT = (
    "vLLM is not installed: run `make vllm`, or name the Python of its environment in GANGLION_VLLM_PYTHON"
)
LIMITS = WorkerLimits(stop_s=5.0, backoff_s=(0.05,) * 5, healthy_s=0.0, recovery_wait_s=120.0)


def vllm_python() -> Path | None:
    """The Python that has vLLM: the one that is named, else the one that `make vllm` installs."""
    named = os.environ.get("GANGLION_VLLM_PYTHON")
    python = Path(named) if named else CHECKOUT / ".engines" / "vllm" / "bin" / "python"
    return python if python.exists() else None


def needed_python() -> Path:
    """The same; whoever asks is skipped where there is none."""
    python = vllm_python()
    if python is None:
        pytest.skip(ABSENT)
    return python


@contextmanager
def embedded_checkpoint() -> Iterator[Path]:
    """The embedded model as a checkpoint, in a folder that is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        yield write_checkpoint(embedded_model().path, Path(folder) / "SmolLM2")


def vllm_settings(model_id: str = "smollm2", **own: object) -> EngineSettings:
    """Small, quick to start, and on two threads beside whatever else runs on a test machine."""
    vllm = structs.replace(VllmSettings(python=str(needed_python()), eager=True), **own)
    return EngineSettings(model_id=model_id, context=2048, parallel=32, threads=2, vllm=vllm, limits=LIMITS)


@asynccontextmanager
async def vllm_engine(settings: EngineSettings | None = None) -> AsyncIterator[VllmEngine]:
    """The embedded model, served by vLLM; no process of it is left after the block."""
    settings = settings or vllm_settings()
    with embedded_checkpoint() as folder:
        engine = VllmEngine(read_facts(folder), settings)
        await engine.open()
        processes = processes_of(engine)
        try:
            yield engine
            processes += processes_of(engine)
        finally:
            await engine.close()
        await until(lambda: not living(processes), 5.0)


def processes_of(engine: VllmEngine) -> list[psutil.Process]:
    """The worker's process and all that it started, the worker's first."""
    process_id = engine.tokens.supervisor.process_id
    if process_id is None:
        return []
    try:
        worker = psutil.Process(process_id)
        return [worker, *worker.children(recursive=True)]
    except psutil.NoSuchProcess:  # it has just ended, and its supervisor has yet to hear of it
        return []


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run; one that ended and that nobody waited for does not."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
