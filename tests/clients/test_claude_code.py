"""Claude Code itself against a node: a turn, and a tool round trip.

The model is played, since a small one would not choose a tool; the wire is real. The client comes from npm
(`@anthropic-ai/claude-code`), and `GANGLION_CLAUDE` names its program; without it there is nothing to run.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ganglion.engines.echo_script import Call, Script
from ganglion.server.run import Shutdown, serve
from ganglion.server.settings import ServerSettings
from played_engine import PlayedEngine

CLAUDE = os.environ.get("GANGLION_CLAUDE", "")

pytestmark = pytest.mark.skipif(not CLAUDE, reason="GANGLION_CLAUDE does not name the program")

QUIET = {
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
LOOKING = (
    Script(
        reasoning="A command will tell.",
        reply="I look.",
        calls=(Call("Bash", '{"command": "echo $((6 * 7))", "description": "Multiply"}'),),
    ),
    Script(reasoning="There it is.", reply="It is 42."),
)


async def claude(engine: PlayedEngine, home: Path, *flags: str) -> dict[str, Any]:
    """What `claude -p` reports of one run."""
    shutdown = Shutdown()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            engine,
            ServerSettings(port=0, is_strict=True, drain_timeout_s=0.2),
            shutdown=shutdown,
            on_listening=listening.set_result,
        )
    )
    try:
        environment = {
            **QUIET,
            "ANTHROPIC_BASE_URL": await listening,
            "HOME": str(home),
            "PATH": os.environ["PATH"],
        }
        process = await asyncio.create_subprocess_exec(
            *(CLAUDE, "-p", "What is six times seven?", "--model", "echo", "--output-format", "json", *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            cwd=home,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
        report: dict[str, Any] = json.loads(said)
        return report
    finally:
        shutdown.ask()
        shutdown.ask()
        await serving


async def test_it_completes_a_turn(tmp_path: Path) -> None:
    engine = PlayedEngine([Script(reply="Forty-two.")])
    report = await claude(engine, tmp_path)
    assert (report["is_error"], report["result"], report["stop_reason"]) == (False, "Forty-two.", "end_turn")
    asked = engine.requests[0].prompt
    assert len(asked.tool_use.tools) > 10
    assert report["usage"]["input_tokens"] > 100


async def test_it_runs_a_tool_and_tells_the_model_what_came_of_it(tmp_path: Path) -> None:
    engine = PlayedEngine(LOOKING)
    report = await claude(engine, tmp_path, "--allowedTools", "Bash")
    assert (report["is_error"], report["result"], report["num_turns"]) == (False, "It is 42.", 2)
    spoken, told = engine.requests[-1].prompt.messages[-2:]
    assert (spoken.role, spoken.content, spoken.reasoning) == ("assistant", "I look.", "A command will tell.")
    assert (told.role, told.content.strip(), told.name) == ("tool", "42", "Bash")
    assert told.tool_call_id == spoken.tool_calls[0].call_id


async def test_a_refusal_reaches_the_person(tmp_path: Path) -> None:
    report = await claude(PlayedEngine([Script()]), tmp_path, "--model", "nobody")
    assert report["is_error"]
    assert "nobody" in report["result"]
