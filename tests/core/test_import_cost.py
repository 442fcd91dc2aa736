"""What importing Ganglion must not cost."""

import subprocess
import sys

import pytest

HEAVY = {
    "grpc",
    "google.protobuf",
    "xllamacpp",
    "cffi",
    "numpy",
    "starlette",
    "uvicorn",
    "uvloop",
    "jinja2",
    "prometheus_client",
    "psutil",
}


@pytest.mark.parametrize(
    "module",
    [
        "ganglion",
        "ganglion.cli.main",
        "ganglion.cli.serve",
        "ganglion.cli.inference.chat",
        "ganglion.cli.inference.score",
        "ganglion.cli.system.doctor",
        "ganglion.cli.command_groups",
        "ganglion.cli.fleet.status",
        "ganglion.cli.fleet.drain_move",
        "ganglion.cli.fleet.plan",
    ],
)
def test_importing_it_pulls_in_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(loaded.stdout.split())
