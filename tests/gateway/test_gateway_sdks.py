"""The clients that people use, through a gateway: what they accept of a node they accept of a fleet."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from gateways import MEMORY, Running, gateway
from remote_nodes import echo, listening

from ganglion.core.engine import ManagedEngine
from ganglion.core.sampling import Sampling
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.node import NodeSpec
from ganglion.wire.dialects import USUAL_WIRES
from support.open_responses import check_response
from support.played_engine import PlayedEngine
from support.responses_invariants import check, frames_of

SCRIPT = Path(__file__).with_name("gateway_sdk_script.py")
ANTHROPIC_SCRIPT = Path(__file__).parents[1] / "server" / "anthropic_script.py"
RUNNER_SCRIPT = ANTHROPIC_SCRIPT.with_name("tool_runner_script.py")
OLDER = Path(sys.prefix) / "openai-2"
"""Where `make setup` puts the SDK's previous major."""
CALLER = EchoScript(reply="", calls=(ScriptedCall("weather", '{"city":"Oslo"}'),))
WEATHER = (
    EchoScript(
        reasoning="Oslo it is.",
        reply="I look.",
        calls=(ScriptedCall("weather", '{"city": "Oslo"}'),),
        cached_tokens=2,
    ),
    EchoScript(reply="It rains."),
)
NOTHING = {"model": "echo", "input": "one two", "max_output_tokens": 0}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
ASKED = [{"role": "user", "content": "one two three"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "echo", "messages": ASKED, "logprobs": True},
    "/v1/completions": {"model": "echo", "prompt": "one two three"},
    "/v1/messages": {"model": "echo", "messages": ASKED, "max_tokens": 9},
    "/api/chat": {"model": "echo", "messages": ASKED},
    "/api/generate": {"model": "echo", "prompt": "one two three"},
    "/v1/embeddings": {"model": "echo", "input": "north"},
    "/v1/rerank": {"model": "echo", "query": "a", "documents": ["a b", "c"]},
    "/v1/score": {"model": "echo", "prompt": "a b c", "score_ranges": [[1, 3]]},
    "/tokenize": {"model": "echo", "content": "a b"},
}
STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate")
TOLD_ANEW = re.compile(
    rb'"(?:id|created|created_at|total_duration|load_duration|prompt_eval_duration|eval_duration)":'
    rb'(?:"[^"]*"|\d+)'
)


@asynccontextmanager
async def through(*engines: ManagedEngine, **spec: Any) -> AsyncIterator[Running]:
    """A gateway over a node for each engine."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(listening(engine, is_strict=False)) for engine in engines]
        nodes = [NodeSpec(f"n{number}", url, **spec) for number, url in enumerate(urls)]
        running = await stack.enter_async_context(gateway(nodes, storage=MEMORY))
        async with asyncio.timeout(5):
            while len((await running.http.get("/fleet")).json()["nodes"][-1]["models"]) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield running


async def ran(script: Path, url: str, path: str = "") -> list[str]:
    """What a script that must succeed prints."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), url),
        env=environment | {"PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    return output.decode().splitlines()


@pytest.mark.parametrize("sdk", ["newest", "2.x"])
async def test_openais_sdk_accepts_every_answer_with_strict_validation(sdk: str) -> None:
    caller = echo(CALLER, model_id="caller")
    async with through(echo(), echo(), caller) as running:
        said = await ran(SCRIPT, running.url, "" if sdk == "newest" else str(OLDER))
    assert said[0].startswith("2." if sdk == "2.x" else openai.__version__)
    assert said[-1] == "all accepted"


@pytest.mark.parametrize("script", [ANTHROPIC_SCRIPT, RUNNER_SCRIPT], ids=["answers", "tool runner"])
async def test_anthropics_sdk_accepts_every_answer(script: Path) -> None:
    async with through(PlayedEngine(WEATHER, EchoSettings(context=1000))) as running:
        assert (await ran(script, running.url))[-1] == "all accepted"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({}, (0.6, 0.8)), ({"kind": "openai", "wires": USUAL_WIRES}, (1.0, 1.0))],
    ids=["ours", "foreign"],
)
async def test_a_response_tells_the_defaults_of_the_node_that_answered(
    spec: dict[str, Any], expected: tuple[float, float]
) -> None:
    own = EchoEngine(EchoSettings(sampling=Sampling(temperature=0.6, top_p=0.8)))
    ask = {"model": "echo", "input": "one two"}
    async with through(own, **spec) as running:
        for is_streamed in (False, True):
            answer = await running.http.post("/v1/responses", json=ask | {"stream": is_streamed})
            if is_streamed:
                told = [event for _, event in frames_of(answer.content) if "response" in event]
                check(answer.content)
            else:
                told = [{"response": answer.json()}]
            for event in told:
                check_response(event["response"])
                assert (event["response"]["temperature"], event["response"]["top_p"]) == expected
        kept = await running.http.get(f"/v1/responses/{told[-1]['response']['id']}")
        assert (kept.json()["temperature"], kept.json()["top_p"]) == expected
        asked = (await running.http.post("/v1/responses", json=ask | {"temperature": 0})).json()
        assert (asked["temperature"], asked["top_p"]) == (0, expected[1])


async def test_no_token_at_all_is_honoured_by_our_nodes_and_refused_for_others() -> None:
    async with through(EchoEngine()) as running:
        read = (await running.http.post("/v1/responses", json=NOTHING)).json()
        assert (read["status"], read["usage"]["input_tokens"], read["output"]) == ("incomplete", 2, [])
    async with through(EchoEngine(), kind="openai", wires=USUAL_WIRES) as running:
        refused = await running.http.post("/v1/responses", json=NOTHING)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")


async def test_messages_are_translated_for_a_node_that_only_chats() -> None:
    engine = PlayedEngine(WEATHER)
    asked = {"model": "echo", "max_tokens": 99, "tools": [TOOL]}
    async with (
        through(engine, kind="openai", wires=USUAL_WIRES) as running,
        anthropic.AsyncAnthropic(
            base_url=running.url, api_key="none", _strict_response_validation=True
        ) as sdk,
    ):
        async with sdk.messages.stream(**asked, messages=ASKED) as stream:
            first = await stream.get_final_message()
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert (first.stop_reason, first.usage.cache_read_input_tokens) == ("tool_use", 2)
        said = [block.model_dump(exclude_none=True) for block in first.content]
        result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "rain"}
        again = [
            *ASKED,
            {"role": "assistant", "content": said},
            {"role": "user", "content": [result]},
        ]
        second = await sdk.messages.create(**asked, messages=again)
        assert [block.text for block in second.content] == ["It rains."]
        assert second.stop_reason == "end_turn"
    assert [message.role for message in engine.requests[-1].prompt.messages] == ["user", "assistant", "tool"]


async def test_ollamas_client_chats() -> None:
    async with through(echo()) as running, ollama.AsyncClient(running.url, timeout=20) as client:
        whole = await client.chat("echo", ASKED)
        parts = [part async for part in await client.chat("echo", ASKED, stream=True)]
        assert whole.message.content == "one two three"
        assert "".join(part.message.content or "" for part in parts) == "one two three"
        assert (parts[-1].done, parts[-1].eval_count) == (True, 3)
        assert [model.model for model in (await client.list()).models] == ["echo"]
        assert (await client.show("echo")).capabilities
        with pytest.raises(ollama.ResponseError, match="nobody"):
            await client.chat("nobody", ASKED)


async def test_a_socket_goes_through() -> None:
    async with (
        through(echo()) as running,
        openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none") as sdk,
        sdk.responses.connect() as connection,
    ):
        previous: dict[str, str] = {}
        for turn in range(2):
            await connection.response.create(model="echo", input=f"turn {turn}", store=False, **previous)
            async for event in connection:
                if event.type == "response.completed":
                    previous = {"previous_response_id": event.response.id}
                    assert event.response.output_text == f"turn {turn}"
                    break


async def test_an_answer_through_the_gateway_is_the_nodes_byte_for_byte() -> None:
    async with (
        listening(echo(), is_strict=False) as url,
        gateway([NodeSpec("a", url)]) as running,
        httpx.AsyncClient(base_url=url) as direct,
    ):
        for path, body in CALLS.items():
            # Ollama streams unless it is told not to, and everybody else the other way round.
            other = {"stream": not path.startswith("/api/")} if path in STREAMING else {}
            for asked in (body, body | other):
                ours, theirs = await running.http.post(path, json=asked), await direct.post(path, json=asked)
                assert ours.status_code == theirs.status_code == 200, (path, ours.text)
                assert ours.headers["content-type"] == theirs.headers["content-type"]
                assert TOLD_ANEW.sub(b"", ours.content) == TOLD_ANEW.sub(b"", theirs.content), path
            field = next(name for name in body if name != "model")
            wrong = body | {field: {"of": "no use"}}
            named = {"x-request-id": "the-same"}
            ours = await running.http.post(path, json=wrong, headers=named)
            theirs = await direct.post(path, json=wrong, headers=named)
            assert ours.status_code == theirs.status_code == 400, path
            assert ours.content == theirs.content
