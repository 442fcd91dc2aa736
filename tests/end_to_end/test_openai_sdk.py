"""The official SDK, with strict validation, against a real node with the real model."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.real_node import MODEL, Node, running_node

pytestmark = pytest.mark.model

SCRIPT = Path(__file__).with_name("sdk_script.py")
OLDER = Path(sys.prefix) / "openai-2"
"""Where `make setup` puts the SDK's previous major."""


@pytest.fixture(scope="module")
def exact_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The script compares answers word for word; only a deterministic node owes that to a cached prompt."""
    flags = ("--context", "2048", "--deterministic")
    with running_node(tmp_path_factory.mktemp("home"), *flags) as running:
        yield running


@pytest.fixture(params=["newest", "2.x"])
def sdk_path(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "newest" else [str(OLDER)]


def test_both_majors_accept_every_answer_with_strict_validation(
    exact_node: Node, sdk_path: list[str]
) -> None:
    environment = {"PYTHONPATH": ":".join(sdk_path), "PATH": ""}
    command = [sys.executable, str(SCRIPT), exact_node.url, MODEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    version = done.stdout.splitlines()[0]
    assert version.startswith("2." if sdk_path else openai.__version__.split(".")[0] + ".")
    assert done.stdout.splitlines()[-1] == "all accepted"
