"""Vercel's `ai` against a node, with each of its providers: streams, tools, formats, and its own replay.

`npm/vercel.mjs` asks, and prints what the SDK made of the answers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ganglion.core.request import ChatPrompt, JsonSchema
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from support.client_programs import MODULES, documented, needs, node, run
from support.played_engine import PlayedEngine

SCRIPT = Path(__file__).parent / "npm" / "vercel.mjs"
WIRES = ("chat", "compatible", "responses", "stateless", "messages")
SHOWING_REASONING = ("compatible", "messages")
"""OpenAI's own providers show summaries, and there are none here: reasoning is told in full."""
RETURNING_REASONING = ("compatible", "responses", "stateless", "messages")
"""OpenAI's chat wire has no place for it."""
TURNS = (
    EchoScript(
        reasoning="A tool will tell.", reply="I look.", calls=(ScriptedCall("multiply", '{"a": 6, "b": 7}'),)
    ),
    EchoScript(reasoning="There it is.", reply="It is 42."),
    EchoScript(reasoning="Once more.", reply="Still 42."),
    EchoScript(reply="Yes."),
)
OSLO = {"city": "Oslo", "people": 700000}

pytestmark = needs(MODULES / "ai")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a program finds its packages."""
    (tmp_path / "node_modules").symlink_to(MODULES)
    return tmp_path


async def vercel(engine: PlayedEngine, folder: Path, wire: str, scenario: str) -> Any:
    """What the script prints."""
    shutil.copy(SCRIPT, folder)
    async with node(engine, folder / "store.db") as url:
        ran = await run("node", SCRIPT.name, wire, scenario, url, home=folder)
    assert (ran.status, ran.errors) == (0, "")
    return json.loads(ran.output)


def prompt(engine: PlayedEngine) -> ChatPrompt:
    found = engine.requests[-1].prompt
    assert isinstance(found, ChatPrompt)
    return found


async def test_what_is_documented_works(folder: Path) -> None:
    async with node(PlayedEngine([EchoScript(reply="Good day.")])) as url:
        (folder / "hello.mjs").write_text(documented("Vercel `ai`", "js", url))
        ran = await run("node", "hello.mjs", home=folder)
    assert (ran.status, ran.output, ran.errors) == (0, "Good day.", "")


@pytest.mark.parametrize("wire", WIRES)
async def test_three_turns_with_a_tool_go_back_as_they_were_said(folder: Path, wire: str) -> None:
    engine = PlayedEngine(TURNS)
    turns = await vercel(engine, folder, wire, "turns")
    assert [[step["text"] for step in turn] for turn in turns] == [
        *(["I look.", "It is 42."], ["Still 42."], ["Yes."]),
    ]
    first = turns[0][0]
    assert (first["finish"], first["calls"]) == ("tool-calls", [["multiply", {"a": 6, "b": 7}]])
    assert (first["results"], first["output"], first["reasoned"]) == ([{"product": 42}], 10, 4)
    assert [step["warnings"] for turn in turns for step in turn] == [[]] * 4
    if wire in SHOWING_REASONING:
        assert first["reasoning"] == "A tool will tell."
    messages = prompt(engine).messages
    assert [(message.role, message.content) for message in messages] == [
        ("user", "What is six times seven?"),
        ("assistant", "I look."),
        ("tool", '{"product":42}'),
        ("assistant", "It is 42."),
        ("user", "And again?"),
        ("assistant", "Still 42."),
        ("user", "Sure?"),
    ]
    assert messages[2].tool_call_id == messages[1].tool_calls[0].call_id
    thoughts = ["A tool will tell.", "There it is.", "Once more."]
    thought = [message.reasoning for message in messages if message.role == "assistant"]
    assert thought == (thoughts if wire in RETURNING_REASONING else [None] * 3)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_with_a_tool_is_read_in_steps(folder: Path, wire: str) -> None:
    streamed = await vercel(PlayedEngine(TURNS), folder, wire, "stream")
    first, second = streamed["steps"]
    assert (first["text"], first["finish"]) == ("I look.", "tool-calls")
    assert (first["calls"], first["results"]) == ([["multiply", {"a": 6, "b": 7}]], [{"product": 42}])
    assert (first["output"], first["reasoned"]) == (10, 4)
    assert (second["text"], second["finish"]) == ("It is 42.", "stop")
    parts = streamed["parts"]
    assert "error" not in parts
    assert (parts["text-delta"], parts["tool-input-delta"], parts["finish-step"]) == (5, 4, 2)
    if wire in SHOWING_REASONING:
        assert (first["reasoning"], second["reasoning"]) == ("A tool will tell.", "There it is.")
        assert parts["reasoning-delta"] >= 7


@pytest.mark.parametrize("wire", WIRES)
async def test_an_object_fits_its_schema(folder: Path, wire: str) -> None:
    engine = PlayedEngine([EchoScript(reply=json.dumps(OSLO))])
    answered = await vercel(engine, folder, wire, "object")
    assert (answered["whole"], answered["streamed"]) == (OSLO, OSLO)
    assert answered["partial"][-1] == OSLO
    assert len(answered["partial"]) > 1
    for request in engine.requests:
        assert isinstance(request.constraint, JsonSchema)
        assert isinstance(request.constraint.schema, dict)
        assert request.constraint.schema["required"] == ["city", "people"]


async def test_an_object_may_be_the_arguments_of_a_tool_that_must_be_called(folder: Path) -> None:
    engine = PlayedEngine([EchoScript(reply="", calls=(ScriptedCall("json", json.dumps(OSLO)),))])
    answered = await vercel(engine, folder, "tooled", "object")
    assert (answered["whole"], answered["streamed"]) == (OSLO, OSLO)
    tool_use = prompt(engine).tool_use
    assert (tool_use.choice, [tool.name for tool in tool_use.tools]) == ("required", ["json"])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_refusal_is_an_error_of_its_own_and_is_not_tried_again(folder: Path, wire: str) -> None:
    engine = PlayedEngine([EchoScript()])
    error = await vercel(engine, folder, wire, "refusal")
    assert (error["name"], error["statusCode"]) == ("AI_APICallError", 404)
    assert error["message"].startswith("The model 'nobody' does not exist here.")
    assert not error["isRetryable"]
