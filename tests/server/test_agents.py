"""Both majors of the official SDK, with tools, formats and completions, against an echo that calls tools."""

import asyncio
import sys
from pathlib import Path

import openai
import pytest

SCRIPT = Path(__file__).with_name("agent_script.py")
OLDER = Path(sys.prefix) / "openai-2"
"""Where `make setup` puts the SDK's previous major."""


@pytest.mark.parametrize("sdk", ["newest", "2.x"])
async def test_both_majors_accept_every_answer_with_strict_validation(serving, sdk: str) -> None:
    async with serving() as served:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SCRIPT), served.url),
            env={"PYTHONPATH": "" if sdk == "newest" else str(OLDER), "PATH": ""},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
        lines = output.decode().splitlines()
        assert process.returncode == 0, output.decode()
        assert lines[-1] == "all accepted"
        assert lines[0].startswith("2." if sdk == "2.x" else openai.__version__.split(".")[0] + ".")
