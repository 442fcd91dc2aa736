"""A forced tool is called once on the embedded model, through every helper that people use for it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from support.client_programs import ALONE, MODULES, needs
from support.real_node import MODEL, Node

pytestmark = pytest.mark.model

SCRIPT = Path(__file__).with_name("forced_script.py")
VERCEL = Path(__file__).with_name("forced_vercel.mjs")
OLDER = [Path(sys.prefix) / "openai-2", Path(sys.prefix) / "anthropic-1"]
"""Where `make setup` puts the SDKs' previous majors."""


@pytest.mark.parametrize("path", [[], OLDER], ids=["newest", "previous"])
def test_the_sdks_helpers_and_loops_call_a_forced_tool_once(node: Node, path: list[Path]) -> None:
    environment = {"PYTHONPATH": ":".join(map(str, path)), "PATH": ""}
    command = [sys.executable, str(SCRIPT), node.url, MODEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("2." if path else openai.__version__)
    assert done.stdout.splitlines()[-1] == "all called once"


@needs(MODULES / "ai")
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_vercels_loop_calls_a_forced_tool_once_and_ends(node: Node, wire: str, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(MODULES)
    script = shutil.copy(VERCEL, tmp_path)
    program = shutil.which("node")
    assert program is not None
    done = subprocess.run(
        [program, script, wire, node.url, MODEL],
        capture_output=True,
        text=True,
        timeout=110,
        env={"HOME": str(tmp_path), **ALONE},
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ran"] == 1
    assert [step["calls"] for step in told["steps"]] == [1, 0]
    assert told["steps"][0]["finish"] == "tool-calls"
