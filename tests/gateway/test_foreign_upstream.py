"""llama.cpp's own server as a node of the fleet: heard as events, and with every wire that it lacks."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from remote_nodes import InOrder, Loads, held, listening

from ganglion.core.engine import ModelState
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Event, Failed, Finished
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.core.request import ChatPrompt, JsonSchema, Message, Request
from ganglion.core.sampling import Sampling
from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.registry.hub.embedded import SMOLLM2, find
from ganglion.server.life.storage import StoreTarget
from ganglion.wire.dialects import USUAL_WIRES
from support.ports import free_port

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
CONTEXT = 1024
LONG = "word " * 2000


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llama.cpp's server with the embedded model in a process of its own: its URL."""
    if find_spec("xllamacpp") is None:  # looked for and not imported: others test that nobody does
        pytest.skip("llama.cpp's own server comes with xllamacpp, which is not installed")
    found = find(SMOLLM2, Path("nowhere"))
    if found is None:
        pytest.skip("the embedded model is not installed")
    port, log = free_port(), tmp_path_factory.mktemp("peer") / "peer.log"
    command = [sys.executable, "-m", "benchmarks.peer", "--port", str(port), "--threads", "2"]
    command += ["--model", str(found.path), "--name", "smol", "--parallel", "2", "--context", str(CONTEXT)]
    with log.open("wb") as told:
        process = subprocess.Popen(
            [*command, "--unified"], cwd=ROOT, stdout=told, stderr=told, env={**os.environ}
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            assert process.poll() is None, log.read_text()
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait(5)


@asynccontextmanager
async def fleet_of(url: str) -> AsyncIterator[FleetEngine]:
    fleet, pools = Fleet(), ConnectionPools()
    fleet.put(held(NodeSpec("llama", url, "openai", wires=USUAL_WIRES), "smol", created_s=1_700_000_000))
    try:
        yield FleetEngine(fleet, InOrder(fleet), NodeClient(pools), Loads(fleet))
    finally:
        pools.close()


@asynccontextmanager
async def desk_on(url: str) -> AsyncIterator[str]:
    """Every wire, with a store, on a server that speaks chat alone."""
    async with fleet_of(url) as engine, listening(engine, storage=StoreTarget(":memory:")) as desk:
        yield desk


def ask(text: str = "Say hi.", **changes: Any) -> Request:
    fields = {"sampling": Sampling(temperature=0.0), "max_tokens": 6, **changes}
    return Request("r", "smol", ChatPrompt((Message("user", text),)), **fields)


async def heard(engine: FleetEngine, request: Request) -> list[Event]:
    grammar, events = Grammar(), []
    async for event in engine.generate(request):
        grammar.feed(event)
        events.append(event)
    grammar.check_ended()
    return events


def asked_directly(url: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": "smol", "temperature": 0, "max_tokens": 6, **fields}).encode()
    with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


async def test_its_stream_is_the_answer_that_it_gives_whole(upstream: str) -> None:
    async with fleet_of(upstream) as engine:
        answer = fold(await heard(engine, ask(top_logprobs=2)))
        read = await engine.read(ask())
    whole = asked_directly(upstream, messages=[{"role": "user", "content": "Say hi."}])
    assert answer.text("text") == whole["choices"][0]["message"]["content"] != ""
    usage = answer.finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole["usage"]["prompt_tokens"], 6)
    assert answer.finished.reason == "length"
    assert len(read.tokens) == usage.prompt_tokens
    assert b"".join(token.piece for token in answer.tokens).decode() == answer.text("text")
    assert all(token.id >= 0 and token.logprob is not None and len(token.top) == 2 for token in answer.tokens)


async def test_a_schema_is_honoured_there(upstream: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    closed = {**schema, "additionalProperties": False}
    async with fleet_of(upstream) as engine:
        answer = fold(await heard(engine, ask(constraint=JsonSchema(closed), max_tokens=40)))
    assert list(json.loads(answer.text("text"))) == ["a"]


async def test_a_prompt_that_is_too_long_is_our_own_error_with_both_numbers(upstream: str) -> None:
    async with fleet_of(upstream) as engine:
        (failed,) = await heard(engine, ask(LONG))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ContextLengthExceeded)
    assert failed.error.extras["max"] == CONTEXT
    assert int(failed.error.extras["prompt_len"] or 0) > 2000


async def test_leaving_an_answer_frees_its_slot_there(upstream: str) -> None:
    async with fleet_of(upstream) as engine:
        for _ in range(3):
            events = engine.generate(ask("Tell me a long story.", max_tokens=900))
            async for event in events:
                if type(event).__name__ == "Delta":
                    break
            await events.aclose()
        assert isinstance((await heard(engine, ask()))[-1], Finished)


async def test_responses_are_stored_and_chained_on_a_server_that_knows_only_chat(upstream: str) -> None:
    async with (
        desk_on(upstream) as desk,
        openai.AsyncOpenAI(
            base_url=f"{desk}/v1", api_key="none", max_retries=0, _strict_response_validation=True
        ) as sdk,
    ):
        about = {"model": "smol", "temperature": 0, "max_output_tokens": 6}
        first = await sdk.responses.create(**about, input="Say hi.", prompt_cache_key="thread 1")
        assert (first.status, first.output_text != "") == ("incomplete", True)
        assert first.usage is not None
        assert first.usage.output_tokens == 6
        async with await sdk.responses.create(
            **about, input="And now?", previous_response_id=first.id, stream=True
        ) as stream:
            *_, last = [event async for event in stream]
        assert last.type == "response.incomplete"
        second = last.response
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
        assert (await sdk.responses.retrieve(second.id)).output_text == second.output_text
        counted = await sdk.responses.input_tokens.count(
            model="smol", input="And now?", previous_response_id=first.id
        )
        assert counted.input_tokens == second.usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.responses.create(**about, input=LONG)
        assert caught.value.code == "context_length_exceeded"
        turns = [{"role": "user", "content": text} for text in (LONG, "Say hi.")]
        cut = await sdk.responses.create(**about, input=turns, truncation="auto")
        assert cut.usage is not None
        assert cut.usage.input_tokens == first.usage.input_tokens
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.create(model="nobody", input="hi")
        assert [model.id async for model in sdk.models.list()] == ["smol"]


async def test_messages_are_answered_and_counted_on_a_server_that_knows_only_chat(upstream: str) -> None:
    async with (
        desk_on(upstream) as desk,
        anthropic.AsyncAnthropic(
            base_url=desk, api_key="none", max_retries=0, _strict_response_validation=True
        ) as sdk,
    ):
        hello: list[Any] = [{"role": "user", "content": "Say hi."}]
        about = {"model": "smol", "max_tokens": 6, "extra_body": {"temperature": 0}}
        async with sdk.messages.stream(**about, messages=hello) as stream:
            streamed = await stream.get_final_message()
        counted = await sdk.messages.count_tokens(model="smol", messages=hello)
        assert streamed.stop_reason == "max_tokens"
        assert streamed.usage.output_tokens == 6
        read = streamed.usage.input_tokens + (streamed.usage.cache_read_input_tokens or 0)
        assert read == counted.input_tokens > 6
        whole = await sdk.messages.create(**about, messages=hello)
        assert whole.content[0].to_dict() == streamed.content[0].to_dict()
        with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: .* > {CONTEXT} maximum"):
            await sdk.messages.create(**about, messages=[{"role": "user", "content": LONG}])


async def test_its_models_are_told_as_ours(upstream: str) -> None:
    async with fleet_of(upstream) as engine:
        (model,) = engine.models()
    assert isinstance(model, ModelState)
    assert (model.id, model.engine, model.status, model.created_s) == (
        "smol",
        "openai",
        "loaded",
        1_700_000_000,
    )
