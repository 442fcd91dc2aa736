"""opencode itself against a node, on each wire that its providers speak."""

from pathlib import Path
from typing import Any

import pytest

from ganglion.core.request import ChatPrompt
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from support.client_programs import Ran, documented, needs, node, program, run
from support.played_engine import PlayedEngine

OPENCODE = program("opencode")
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
LOOKING = (
    EchoScript(
        reasoning="A command will tell.",
        reply="I look.",
        calls=(ScriptedCall("bash", '{"command": "echo $((6 * 7))", "description": "Multiply"}'),),
    ),
    EchoScript(reasoning="There it is.", reply="It is 42."),
)

pytestmark = needs(OPENCODE)


async def opencode(engine: PlayedEngine, home: Path, provider: str = "@ai-sdk/openai-compatible") -> Ran:
    """One run of `opencode run`, with a provider of its own in place of the documented one."""
    async with node(engine, home / "store.db") as url:
        config = documented("opencode", "json", url).replace("@ai-sdk/openai-compatible", provider)
        (home / "opencode.json").write_text(config)
        asked = ("--model", "ganglion/echo", "--format", "json", "What is six times seven?")
        return await run(OPENCODE, "run", *asked, home=home, **QUIET)


def parts(ran: Ran, kind: str) -> list[dict[str, Any]]:
    return [event["part"] for event in ran.lines() if event["type"] == kind]


async def test_it_completes_a_turn(tmp_path: Path) -> None:
    engine = PlayedEngine([EchoScript(reply="Forty-two.")])
    ran = await opencode(engine, tmp_path)
    assert [part["text"] for part in parts(ran, "text")] == ["Forty-two."]
    (finish,) = parts(ran, "step_finish")
    assert finish["reason"] == "stop"
    assert finish["tokens"]["input"] > 100
    assert finish["tokens"]["output"] == 1


@pytest.mark.parametrize("provider", ["@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic"])
async def test_it_runs_a_tool_and_tells_the_model_what_came_of_it(tmp_path: Path, provider: str) -> None:
    engine = PlayedEngine(LOOKING)
    ran = await opencode(engine, tmp_path, provider)
    assert [part["text"] for part in parts(ran, "text")] == ["I look.", "It is 42."]
    (used,) = parts(ran, "tool_use")
    assert (used["tool"], used["state"]["status"], used["state"]["output"]) == ("bash", "completed", "42\n")
    assert [part["reason"] for part in parts(ran, "step_finish")] == ["tool-calls", "stop"]
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    spoken, told = prompt.messages[-2:]
    assert (spoken.role, spoken.content, spoken.reasoning) == ("assistant", "I look.", "A command will tell.")
    assert (told.role, told.content) == ("tool", "42\n")
    assert told.tool_call_id == spoken.tool_calls[0].call_id
