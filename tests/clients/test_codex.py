"""Codex itself against a node: turns, tools, and what it makes of failures."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganglion.core.request import Message
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoSettings
from support.client_programs import Ran, documented, needs, node, program, run
from support.played_engine import PlayedEngine

CODEX = program("codex")
ASKED = "What is six times seven?"
LOOKING = (
    EchoScript(
        reasoning="A command will tell.",
        reply="I look.",
        calls=(ScriptedCall("exec_command", json.dumps({"cmd": "echo $((6 * 7))"})),),
    ),
    EchoScript(reasoning="There it is.", reply="It is 42."),
)

pytestmark = needs(CODEX)


@dataclass(frozen=True, slots=True)
class Told:
    """What `codex exec --json` tells of a turn."""

    ran: Ran
    events: list[dict[str, Any]]

    def items(self, kind: str) -> list[dict[str, Any]]:
        done = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in done if item["type"] == kind]

    @property
    def said(self) -> list[str]:
        return [item["text"] for item in self.items("agent_message")]


async def codex(
    engine: PlayedEngine, home: Path, *command: str, has_socket: bool = False, **settings: object
) -> Told:
    """One run of `codex exec`; `settings` are added to what it is configured with."""
    more = {"model_providers.ganglion.stream_max_retries": 2, **settings}
    more |= {"model_providers.ganglion.supports_websockets": has_socket}
    flags = [flag for name, value in more.items() for flag in ("-c", f"{name}={json.dumps(value)}")]
    flags += ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    async with node(engine) as url:
        config = home / ".codex" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(documented("Codex", "toml", url))
        ran = await run(CODEX, "exec", *flags, *(command or (ASKED,)), home=home, GANGLION_API_KEY="none")
    return Told(ran, ran.lines())


def heard(engine: PlayedEngine, request: int = -1) -> tuple[Message, ...]:
    """The messages that the model was given."""
    messages: tuple[Message, ...] = engine.requests[request].prompt.messages
    return messages


async def test_it_completes_a_turn(tmp_path: Path) -> None:
    engine = PlayedEngine([EchoScript(reasoning="Simple.", reply="Forty-two.")])
    told = await codex(engine, tmp_path)
    assert (told.ran.status, told.said) == (0, ["Forty-two."])
    usage = told.events[-1]["usage"]
    assert usage["input_tokens"] > 100
    assert (usage["output_tokens"], usage["reasoning_output_tokens"]) == (2, 1)
    assert heard(engine)[-1] == Message("user", ASKED)
    assert len(engine.requests) == 1


TRANSPORTS = pytest.mark.parametrize("has_socket", [False, True], ids=["http", "websocket"])


@TRANSPORTS
async def test_it_runs_a_tool_and_tells_the_model_what_came_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_socket: bool
) -> None:
    engine = PlayedEngine(LOOKING)
    with caplog.at_level("INFO", "ganglion.request"):
        told = await codex(engine, tmp_path, has_socket=has_socket)
    posted = [line for line in caplog.messages if "method=POST path=/v1/responses" in line]
    assert len(posted) == (0 if has_socket else 2)
    assert (told.ran.status, told.said) == (0, ["I look.", "It is 42."])
    (command,) = told.items("command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("42\n", 0)
    spoken, output = heard(engine)[-2:]
    assert (spoken.role, spoken.content, spoken.reasoning) == ("assistant", "I look.", "A command will tell.")
    assert (output.role, output.name) == ("tool", "exec_command")
    assert output.content.endswith("Output:\n42\n")
    assert output.tool_call_id == spoken.tool_calls[0].call_id
    assert len(engine.requests) == 2


async def test_it_goes_on_where_it_left_off(tmp_path: Path) -> None:
    engine = PlayedEngine([*LOOKING, EchoScript(reply="Still 42."), EchoScript(reply="Yes.")])
    await codex(engine, tmp_path)
    again = await codex(engine, tmp_path, "resume", "--last", "And again?")
    assert again.said == ["Still 42."]
    once_more = await codex(engine, tmp_path, "resume", "--last", "Sure?")
    assert once_more.said == ["Yes."]
    spoken = [message for message in heard(engine) if message.role == "assistant"]
    assert [message.content for message in spoken] == ["I look.", "It is 42.", "Still 42."]
    assert [message.reasoning for message in spoken] == ["A command will tell.", "There it is.", None]


async def test_it_compacts_by_itself_when_the_usage_says_so(tmp_path: Path) -> None:
    engine = PlayedEngine([EchoScript(reply="Forty-two."), EchoScript(reply="They multiplied.")])
    await codex(engine, tmp_path)
    await codex(engine, tmp_path, "resume", "--last", "And again?", model_auto_compact_token_limit=100)
    assert "CONTEXT CHECKPOINT COMPACTION" in heard(engine, 1)[-1].content
    summary, asked = heard(engine, 2)[-2:]
    assert summary.content.endswith("They multiplied.")
    assert asked.content == "And again?"
    assert "assistant" not in {message.role for message in heard(engine, 2)}


async def test_a_tool_of_a_namespace_is_called_by_both_its_names(tmp_path: Path) -> None:
    engine = PlayedEngine(
        [
            EchoScript(
                reply="", calls=(ScriptedCall("multi_agent_v1__close_agent", '{"target": "nobody"}'),)
            ),
            EchoScript(reply="Nobody is there."),
        ]
    )
    told = await codex(engine, tmp_path)
    assert told.said == ["Nobody is there."]
    offered = [tool.name for tool in engine.requests[0].prompt.tool_use.tools]
    assert "multi_agent_v1__close_agent" in offered
    output = heard(engine)[-1]
    assert output.name == "multi_agent_v1__close_agent"
    assert output.content.startswith("invalid agent id nobody")


@TRANSPORTS
async def test_a_prompt_that_is_too_long_is_told_once_and_not_tried_again(
    tmp_path: Path, has_socket: bool
) -> None:
    engine = PlayedEngine([EchoScript()], EchoSettings(context=500))
    told = await codex(engine, tmp_path, has_socket=has_socket)
    assert told.ran.status == 1
    assert told.events[-1]["type"] == "turn.failed"
    assert "ran out of room in the model's context window" in told.events[-1]["error"]["message"]
    assert len(engine.requests) == 1


async def test_an_answer_that_breaks_off_is_asked_for_again_without_its_beginning(tmp_path: Path) -> None:
    engine = PlayedEngine([EchoScript(reply="It is forty two.", fail_at=2)])
    told = await codex(engine, tmp_path)
    assert told.ran.status == 1
    assert told.events[-1]["error"]["message"].endswith("The echo was told to fail.")
    assert len(engine.requests) == 3
    assert heard(engine, -1) == heard(engine, 0)


async def test_a_refusal_reaches_the_person(tmp_path: Path) -> None:
    told = await codex(PlayedEngine([EchoScript()]), tmp_path, "--model", "nobody", ASKED)
    assert told.ran.status == 1
    assert "The model 'nobody' does not exist here." in told.events[-1]["error"]["message"]
