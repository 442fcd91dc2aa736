"""The official SDK, with strict validation, against a real node with the real model."""

import subprocess
import sys
from pathlib import Path

import openai
import pytest
from conftest_paths import OPENAI_2

from ganglion.registry.embedded import SMOLLM2

pytestmark = pytest.mark.model

SCRIPT = Path(__file__).with_name("sdk_script.py")


@pytest.fixture(params=["newest", "2.x"])
def sdk_path(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "newest" else [str(OPENAI_2)]


def test_both_majors_accept_every_answer_with_strict_validation(node, sdk_path):
    environment = {"PYTHONPATH": ":".join(sdk_path), "PATH": ""}
    command = [sys.executable, str(SCRIPT), node.url, SMOLLM2.id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    version = done.stdout.splitlines()[0]
    assert version.startswith("2." if sdk_path else openai.__version__.split(".")[0] + ".")
    assert done.stdout.splitlines()[-1] == "all accepted"
