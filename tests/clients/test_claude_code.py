"""Claude Code itself against a node: a turn, and a tool round trip."""

import json
import os
from pathlib import Path
from typing import Any

from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from support.client_programs import documented, needs, node, program, run
from support.played_engine import PlayedEngine

CLAUDE = program("claude")
PATH = os.environ["PATH"]
QUIET = {
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
LOOKING = (
    EchoScript(
        reasoning="A command will tell.",
        reply="I look.",
        calls=(ScriptedCall("Bash", '{"command": "echo $((6 * 7))", "description": "Multiply"}'),),
    ),
    EchoScript(reasoning="There it is.", reply="It is 42."),
)

pytestmark = needs(CLAUDE)


async def claude(engine: PlayedEngine, home: Path, *flags: str) -> dict[str, Any]:
    """What `claude -p` reports of one run."""
    async with node(engine) as url:
        ran = await run(
            *(CLAUDE, "-p", "What is six times seven?", "--model", "echo", "--output-format", "json", *flags),
            home=home,
            ANTHROPIC_BASE_URL=url,
            **QUIET,
        )
    report: dict[str, Any] = json.loads(ran.output)
    return report


async def test_what_is_documented_works(tmp_path: Path) -> None:
    engine = PlayedEngine([EchoScript(reply="A file.")])
    async with node(engine) as url:
        ran = await run(
            "sh", "-c", documented("Claude Code", "sh", url), home=tmp_path, PATH=f"{CLAUDE.parent}:{PATH}"
        )
    assert (ran.status, ran.output, ran.errors) == (0, "A file.\n", "")
    assert {request.model for request in engine.requests} == {"echo"}


async def test_it_completes_a_turn(tmp_path: Path) -> None:
    engine = PlayedEngine([EchoScript(reply="Forty-two.")])
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
    report = await claude(PlayedEngine([EchoScript()]), tmp_path, "--model", "nobody")
    assert report["is_error"]
    assert "nobody" in report["result"]
