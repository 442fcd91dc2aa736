"""Codex and Claude Code on a server that speaks chat alone: every other wire is translated."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ganglion.core.errors import ModelNotFound
from ganglion.core.request import Message
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from ganglion.gateway.routing.decision import NoRoute, RoutingDecision, RoutingRequest, TranslatedNode
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from support.client_programs import documented, needs, node, program, run
from support.played_engine import PlayedEngine

CODEX, CLAUDE = program("codex"), program("claude")
ASKED = "What is six times seven?"


class ToTheOnlyOne:
    """Every request goes to one server, by way of the events."""

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec

    def choose(self, asked: RoutingRequest) -> RoutingDecision:
        if asked.tried or asked.model != "echo":
            return NoRoute(ModelNotFound(asked.model))
        return TranslatedNode(self._spec, asked.model)

    async def load(self, model: str) -> None:
        raise ModelNotFound(model)


@asynccontextmanager
async def desk(engine: PlayedEngine, home: Path) -> AsyncIterator[str]:
    """Every wire and a store on a server of which only chat is used: its URL."""
    pools = ConnectionPools()
    async with node(engine) as upstream:
        spec = NodeSpec("chat", upstream, "openai", wires=frozenset({"chat"}))
        fleet, chooser = Fleet(), ToTheOnlyOne(spec)
        replica = Replica("echo", "loaded", context_length=1 << 20, created_s=1_700_000_000)
        fleet.put(NodeView(spec, is_healthy=True, replicas=(replica,)))
        try:
            async with node(FleetEngine(fleet, chooser, NodeClient(pools), chooser), home / "desk.db") as url:
                yield url
        finally:
            pools.close()


def heard(engine: PlayedEngine) -> tuple[Message, ...]:
    """The messages that the model was given last."""
    messages: tuple[Message, ...] = engine.requests[-1].prompt.messages
    return messages


@needs(CODEX)
async def test_codex_runs_a_tool_on_a_chat_only_server(tmp_path: Path) -> None:
    engine = PlayedEngine(
        [
            EchoScript(
                reasoning="A command will tell.",
                reply="I look.",
                calls=(ScriptedCall("exec_command", json.dumps({"cmd": "echo $((6 * 7))"})),),
            ),
            EchoScript(reply="It is 42."),
        ]
    )
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    async with desk(engine, tmp_path) as url:
        config = tmp_path / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text(documented("Codex", "toml", url))
        ran = await run(CODEX, "exec", *flags, ASKED, home=tmp_path, GANGLION_API_KEY="none")
    done = [event["item"] for event in ran.lines() if event["type"] == "item.completed"]
    assert [item["text"] for item in done if item["type"] == "agent_message"] == ["I look.", "It is 42."]
    (command,) = (item for item in done if item["type"] == "command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("42\n", 0)
    assert ran.lines()[-1]["usage"]["input_tokens"] > 100
    spoken, output = heard(engine)[-2:]
    assert (spoken.content, spoken.reasoning) == ("I look.", "A command will tell.")
    assert output.content.endswith("Output:\n42\n")
    assert output.tool_call_id == spoken.tool_calls[0].call_id


@needs(CLAUDE)
async def test_claude_code_runs_a_tool_on_a_chat_only_server(tmp_path: Path) -> None:
    command = json.dumps({"command": "echo $((6 * 7))", "description": "Multiply"})
    engine = PlayedEngine(
        [EchoScript(reply="I look.", calls=(ScriptedCall("Bash", command),)), EchoScript(reply="It is 42.")]
    )
    async with desk(engine, tmp_path) as url:
        ran = await run(
            *(CLAUDE, "-p", ASKED, "--model", "echo", "--output-format", "json", "--allowedTools", "Bash"),
            home=tmp_path,
            ANTHROPIC_BASE_URL=url,
            ANTHROPIC_API_KEY="none",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            DISABLE_ERROR_REPORTING="1",
            DISABLE_TELEMETRY="1",
        )
    report: dict[str, Any] = json.loads(ran.output)
    assert (report["is_error"], report["result"], report["num_turns"]) == (False, "It is 42.", 2)
    assert report["usage"]["input_tokens"] > 100
    spoken, told = heard(engine)[-2:]
    assert (spoken.content, told.content.strip()) == ("I look.", "42")
    assert told.tool_call_id == spoken.tool_calls[0].call_id
