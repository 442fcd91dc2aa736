"""Ollama's own client, over a real socket, against an echo."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import ollama
import pytest

from ganglion.core.engine import Embedded, EmbedRequest, LoadOptions
from ganglion.core.errors import ContextLengthExceeded, LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts
from ganglion.core.request import JsonSchema, Request, TokenPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.hub.download import Report
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.wire.ollama.ollama_models import API_LEVEL
from support.raw_http import request_bytes
from support.waiting import until

HI = [{"role": "user", "content": "hello there you"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is outside.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Noting(EchoEngine):
    """An echo that remembers what it was asked."""

    def __init__(self, settings: EchoSettings | None = None, script: EchoScript | None = None) -> None:
        super().__init__(settings, script)
        self.asked: list[Request] = []

    async def generate(self, request: Request):
        self.asked.append(request)
        async for event in super().generate(request):
            yield event


@pytest.fixture
def talking(serving):
    @asynccontextmanager
    async def start(engine=None, **settings: object) -> AsyncIterator[tuple[ollama.AsyncClient, object]]:
        async with (
            serving(engine, **settings) as served,
            ollama.AsyncClient(served.url, timeout=10) as client,
        ):
            yield client, served

    return start


async def collected(parts) -> list:
    return [part async for part in await parts]


async def test_a_chat_whole_and_streamed_says_the_same(talking) -> None:
    async with talking() as (client, _):
        whole = await client.chat("echo", HI)
        assert (whole.message.role, whole.message.content) == ("assistant", "hello there you")
        assert (whole.done, whole.done_reason, whole.model) == (True, "stop", "echo")
        assert (whole.prompt_eval_count, whole.eval_count) == (3, 3)
        assert whole.total_duration >= whole.eval_duration > 0
        assert whole.message.thinking is None
        assert whole.message.tool_calls is None
        parts = await collected(client.chat("echo", HI, stream=True))
        assert "".join(part.message.content for part in parts) == whole.message.content
        assert [part.done for part in parts] == [False, False, False, True]
        assert parts[-1].eval_count == 3
        assert {part.created_at for part in parts} == {parts[0].created_at}


async def test_a_body_that_says_nothing_about_it_streams(serving) -> None:
    async with serving() as served:
        answer = await served.http.post("/api/chat", json={"model": "echo", "messages": HI})
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert len(answer.text.splitlines()) == 4


async def test_line_ends_of_every_alphabet_reach_the_client_as_text(talking) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\nf\rg"
    async with talking(EchoEngine(script=EchoScript(reply=text))) as (client, _):
        parts = await collected(client.chat("echo", HI, stream=True))
        assert "".join(part.message.content for part in parts) == text


async def test_the_synchronous_client_is_answered_too(talking) -> None:
    async with talking() as (_, served):

        def ask() -> tuple[str, list[str]]:
            client = ollama.Client(served.url, timeout=10)
            try:
                whole = client.generate("echo", "one two")
                return whole.response, [part.response for part in client.generate("echo", "a b", stream=True)]
            finally:
                client.close()

        assert await asyncio.to_thread(ask) == ("one two", ["a", " b", ""])


async def test_tools_are_called_whole_with_arguments_as_objects(talking) -> None:
    script = EchoScript(
        reply="Looking.", calls=(ScriptedCall("weather", '{"city": "Oslo"}'), ScriptedCall("weather", "{}"))
    )
    engine = Noting(script=script)
    async with talking(engine) as (client, _):
        whole = await client.chat("echo", HI, tools=[WEATHER])
        calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
        assert calls == [("weather", {"city": "Oslo"}), ("weather", {})]
        assert whole.done_reason == "stop"
        parts = await collected(client.chat("echo", HI, tools=[WEATHER], stream=True))
        called = [part.message.tool_calls for part in parts if part.message.tool_calls]
        assert [[call.function.arguments for call in each] for each in called] == [[{"city": "Oslo"}], [{}]]
        (tool,) = engine.asked[0].prompt.tool_use.tools
        assert (tool.name, tool.parameters["required"]) == ("weather", ["city"])
        again = [*HI, whole.message, {"role": "tool", "tool_name": "weather", "content": "rain"}]
        await client.chat("echo", again, tools=[WEATHER])
        _, made, answered = engine.asked[-1].prompt.messages
        assert made.tool_calls[0].arguments == '{"city":"Oslo"}'
        assert answered.tool_call_id == made.tool_calls[0].call_id


async def test_thinking_goes_its_own_way(talking) -> None:
    engine = Noting(script=EchoScript(reply="yes", reasoning="hm well"))
    async with talking(engine) as (client, _):
        whole = await client.chat("echo", HI, think=True)
        assert (whole.message.thinking, whole.message.content) == ("hm well", "yes")
        parts = await collected(client.generate("echo", "x", think="high", stream=True))
        assert "".join(part.thinking or "" for part in parts) == "hm well"
        assert "".join(part.response for part in parts) == "yes"
        assert engine.asked[0].prompt.thinking.is_enabled is True
        assert engine.asked[1].prompt.thinking.effort == "high"


async def test_a_format_and_options_reach_the_engine(talking) -> None:
    engine = Noting()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with talking(engine) as (client, _):
        options = ollama.Options(temperature=0, num_predict=2, num_ctx=4096, num_gpu=1, stop=["zzz"])
        whole = await client.chat("echo", HI, format=schema, options=options)
        assert (whole.message.content, whole.done_reason) == ("hello there", "length")
        assert engine.asked[0].constraint == JsonSchema(schema)
        assert engine.asked[0].sampling.temperature == 0
        whole = await client.generate("echo", "x", format="json", logprobs=True, top_logprobs=2)
        assert engine.asked[1].constraint == JsonSchema({"type": "object"})
        assert len(whole.logprobs[0].top_logprobs) == 2
        assert whole.logprobs[0].token == "x"


async def test_a_context_larger_than_the_models_is_a_warning_and_not_a_refusal(talking, caplog) -> None:
    with caplog.at_level(logging.WARNING, "ganglion.server"):
        async with talking() as (client, _):
            for _ in range(2):
                await client.chat("echo", HI, options={"num_ctx": 10**6})
    assert [record.getMessage() for record in caplog.records if record.name == "ganglion.server"] == [
        "a client asks echo for a context of 1000000 tokens; it has 8192"
    ]


async def test_texts_are_generated_as_turns_or_raw(talking) -> None:
    engine = Noting()
    async with talking(engine) as (client, _):
        await client.generate("echo", "hi", system="be brief")
        assert [message.role for message in engine.asked[0].prompt.messages] == ["system", "user"]
        raw = await client.generate("echo", "as it stands", raw=True)
        assert raw.response == "as it stands"
        assert engine.asked[1].prompt.text == "as it stands"


async def test_texts_become_vectors(talking) -> None:
    async with talking() as (client, _):
        one = await client.embed("echo", "one two")
        both = await client.embed("echo", ["one two", "three"], dimensions=32)
        assert len(one.embeddings) == 1
        assert [len(vector) for vector in both.embeddings] == [32, 32]
        assert (both.prompt_eval_count, both.model) == (3, "echo")
        assert both.total_duration > 0
        old = await client.embeddings("echo", "one two")
        assert list(old.embedding) == pytest.approx(list(one.embeddings[0]))
        assert (await client.embed("echo", "")).embeddings == []


async def test_an_input_that_is_too_long_is_cut_unless_that_is_forbidden(talking) -> None:
    class Short(EchoEngine):
        async def embed(self, request: EmbedRequest) -> Embedded:
            for each in request.inputs:
                tokens = each.tokens if isinstance(each, TokenPrompt) else each.text.split()
                if len(tokens) > 4:
                    raise ContextLengthExceeded(len(tokens), 4)
            return await super().embed(request)

    async with talking(Short()) as (client, _):
        cut = await client.embed("echo", ["a b c d e f", "g"])
        alone = await client.embed("echo", ["a b c", "g"])
        assert cut.embeddings == alone.embeddings
        with pytest.raises(ollama.ResponseError) as caught:
            await client.embed("echo", "a b c d e f", truncate=False)
        assert caught.value.status_code == 400


FACTS = ModelFacts(
    path="/secret/model.gguf",
    size_bytes=123_456_789,
    modified_s=1700000000,
    architecture="llama",
    name="Tiny",
    context_length=4096,
    block_count=30,
    kv_values_per_token=1,
    vocabulary_size=49152,
    chat_template="{{ messages }}",
    quantisation="Q8_0",
    parameters=134_515_008,
    sampling=Sampling(temperature=0.7, top_k=40),
)


class Described(EchoEngine):
    """An echo that has read its file."""

    def models(self):
        (state,) = super().models()
        described = ("chat", "tools", "reasoning", "embeddings")
        return (replace(state, engine="llama", facts=FACTS, memory_mb=200, capabilities=described),)


async def test_models_are_listed_shown_and_told_whether_they_run(talking) -> None:
    async with talking(Described(EchoSettings(aliases=("small",)))) as (client, served):
        (listed,) = (await client.list()).models
        assert (listed.model, listed.size, len(listed.digest)) == ("echo", 123_456_789, 64)
        assert listed.details.model_dump() == {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "134.5M",
            "quantization_level": "Q8_0",
        }
        (running,) = (await client.ps()).models
        assert (running.name, running.context_length, running.size_vram) == ("echo", 8192, 0)
        assert running.size == 200 << 20
        for name in ("echo", "echo:latest", "small:latest", "SMALL"):
            shown = await client.show(name)
            assert shown.capabilities == ["completion", "tools", "thinking", "embedding"]
        assert shown.modelinfo["general.architecture"] == "llama"
        assert shown.modelinfo["llama.context_length"] == 8192
        assert shown.modelinfo["general.parameter_count"] == 134_515_008
        assert [line.split() for line in shown.parameters.splitlines()] == [
            ["temperature", "0.7"],
            ["top_k", "40"],
        ]
        everything = await served.http.post("/api/show", json={"model": "echo"})
        assert "secret" not in everything.text
        assert (await client.chat("small:latest", HI)).model == "small:latest"


async def test_the_version_is_of_the_api(serving) -> None:
    async with serving() as served:
        assert (await served.http.get("/api/version")).json() == {"version": API_LEVEL}
        assert tuple(map(int, API_LEVEL.split("."))) >= (0, 6, 4)
        for path in ("/", "/api/tags", "/api/version"):
            assert (await served.http.head(path)).status_code == 200


def held(name: str, **fields: object) -> Candidate:
    settings = EchoSettings(name, allow_directives=True)
    return replace(
        Candidate(name, build_without_options(lambda: EchoEngine(settings)), engine="echo"), **fields
    )


def holding(*candidates: Candidate) -> Residency:
    known = {candidate.id: candidate for candidate in candidates}

    async def find(name: str, *, may_catch_all: bool) -> Candidate | str:
        if name not in known:
            raise ModelNotFound(name)
        return known[name]

    return Residency((), free_bytes=lambda: 0, find=find)


async def test_a_pull_tells_its_bytes_and_its_end(talking) -> None:
    async def fetch(options: LoadOptions, report: Report) -> None:
        for done in range(0, 101, 20):
            report(done, 100)
            await asyncio.sleep(0.06)

    async def build(options: LoadOptions, *, free_bytes: int):
        raise LoadFailed("not a model")

    engine = holding(held("org/far", fetch=fetch), Candidate("broken", build, fetch=fetch), held("near"))
    async with talking(engine) as (client, _):
        parts = await collected(client.pull("hf.co/org/far:latest", stream=True))
        assert [parts[0].status, parts[-1].status] == ["pulling manifest", "success"]
        counted = [part for part in parts if part.total]
        assert counted
        assert {(part.total, part.digest) for part in counted} == {(100, counted[0].digest)}
        assert [part.completed for part in counted] == sorted(part.completed for part in counted)
        assert (await client.pull("near")).status == "success"
        assert {model.model for model in (await client.ps()).models} == {"org/far", "near"}
        with pytest.raises(ollama.ResponseError, match="not a model"):
            await collected(client.pull("broken", stream=True))
        with pytest.raises(ollama.ResponseError, match="model 'nowhere' not found") as caught:
            await collected(client.pull("nowhere", stream=True))
        assert caught.value.status_code == 404


async def test_a_silent_pull_repeats_itself(talking) -> None:
    slow = Candidate(
        "slow", build_without_options(lambda: EchoEngine(EchoSettings("slow", open_delay_s=0.25)))
    )
    async with talking(holding(slow), keep_alive_s=0.05) as (client, _):
        statuses = [part.status for part in await collected(client.pull("slow", stream=True))]
        assert statuses.count("loading model") > 2


async def test_an_engine_whose_models_are_fixed_has_pulled_them(talking) -> None:
    async with talking() as (client, _):
        assert (await client.pull("echo:latest")).status == "success"
        with pytest.raises(ollama.ResponseError) as caught:
            await client.pull("other")
        assert caught.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="fixed") as caught:
            await client.generate("echo", "", keep_alive=0)
        assert caught.value.status_code == 503


async def test_nothing_to_say_loads_a_model_and_no_time_to_stay_unloads_it(talking) -> None:
    async with talking(holding(held("one"), held("two"))) as (client, _):
        assert (await client.generate("one")).done_reason == "load"
        assert (await client.chat("two")).done_reason == "load"
        assert {model.model for model in (await client.ps()).models} == {"one", "two"}
        assert (await client.generate("one", keep_alive=0)).done_reason == "unload"
        assert (await client.chat("two", keep_alive="0s")).done_reason == "unload"
        assert (await client.ps()).models == []
        assert {model.model for model in (await client.list()).models} == {"one", "two"}
        shown = await client.show("one")  # and asking about a model does not bring it back
        assert shown.template == ""
        assert (await client.ps()).models == []


async def test_errors_are_statuses_with_one_string(talking) -> None:
    async with talking() as (client, served):
        wrong = [
            (client.chat("nobody", HI), 404, "model 'nobody' not found"),
            (client.chat("nobody", HI, stream=True), 404, "model 'nobody' not found"),
            (client.show("nobody"), 404, "model 'nobody' not found"),
            (client.chat("echo", HI, options={"mirostat": 3}), 400, "options.mirostat"),
            (client.chat("echo", [{"role": "user", "content": "x " * 9000}]), 400, "too long"),
            (client.generate("echo", "x", images=[b"png"]), 400, "image"),
            (client.embed("nobody", "x"), 404, "model 'nobody' not found"),
        ]
        for asking, status, words in wrong:
            with pytest.raises(ollama.ResponseError, match=words) as caught:
                answer = await asking
                if hasattr(answer, "__aiter__"):
                    [part async for part in answer]
            assert caught.value.status_code == status
        for path, body in (("/api/chat", b"{"), ("/api/nowhere", b"{}"), ("/api/embed", b'{"model":"echo"}')):
            refused = await served.http.post(path, content=body, headers={"content-type": "application/json"})
            assert isinstance(refused.json()["error"], str)
        assert (await served.http.get("/api/chat")).json().keys() == {"error"}


async def test_a_break_in_the_stream_is_its_last_line(talking) -> None:
    async with talking() as (client, _):
        said = []
        with pytest.raises(ollama.ResponseError, match="told to fail"):
            async for part in await client.chat(
                "echo", [{"role": "user", "content": "!echo fail_at=2\na b c"}], stream=True
            ):
                said.append(part.message.content)
        assert "".join(said) == "a b"


async def test_silence_is_filled_with_lines_that_say_nothing(talking) -> None:
    async with talking(first_byte_s=0.05, keep_alive_s=0.05) as (client, _):
        messages = [{"role": "user", "content": "!echo first_token_delay=0.3\na b"}]
        parts = await collected(client.chat("echo", messages, stream=True))
        assert len(parts) > 5
        assert "".join(part.message.content for part in parts) == "a b"


async def test_strangers_need_a_key_and_are_told_in_the_wires_words(serving) -> None:
    async with serving(api_keys=("secret",)) as served:
        refused = await served.http.get("/api/tags")
        assert refused.status_code == 401
        assert "API key" in refused.json()["error"]
        client = ollama.AsyncClient(served.url, headers={"authorization": "Bearer secret"})
        async with client:
            assert (await client.list()).models[0].model == "echo"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/show"])
async def test_a_body_need_not_say_that_it_is_json_unless_a_foreign_page_sends_it(
    serving, kind: str | None, path: str
) -> None:
    """Ollama's own documentation sends what curl sends, a form by its type."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
    headers = {} if kind is None else {"content-type": kind}
    async with serving() as served:
        sent = {"content": json.dumps(body), "headers": headers}
        assert (await served.http.post(path, **sent)).status_code == 200
        for origin in ("https://evil.example", "null"):
            sent["headers"] = headers | {"origin": origin}
            assert (await served.http.post(path, **sent)).status_code == 403
        packed = {"content": b"x", "headers": headers | {"content-encoding": "gzip"}}
        assert (await served.http.post(path, **packed)).status_code == 415
        assert (await served.http.post("/v1/chat/completions", content=b"{}")).status_code == 415


async def test_what_does_not_fit_is_cut_where_that_is_asked_for(talking) -> None:
    turns = [{"role": "user", "content": "one two three"}] * 40
    async with talking(EchoEngine(EchoSettings(context=60))) as (_, served):
        refused = await served.http.post("/api/chat", json={"model": "echo", "messages": turns})
        assert refused.status_code == 400
        body = {"model": "echo", "messages": turns, "truncate": True, "stream": False}
        cut = (await served.http.post("/api/chat", json=body)).json()
        assert cut["message"]["content"] == "one two three"
        assert cut["prompt_eval_count"] < 60
        raw = {"model": "echo", "prompt": "word " * 200, "raw": True, "truncate": True, "stream": False}
        assert (await served.http.post("/api/generate", json=raw)).json()["prompt_eval_count"] == 30


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_cancels_its_answer(serving, is_streamed: bool) -> None:
    async with serving() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        messages = [{"role": "user", "content": "!echo unbounded=1 delay=0.01\na b"}]
        writer.write(
            request_bytes("/api/chat", {"model": "echo", "messages": messages, "stream": is_streamed})
        )
        await until(lambda: served.slots_used() == 1)
        writer.transport.abort()
        await served.until_idle(0.5)


async def test_a_reader_that_stalls_is_cut(serving) -> None:
    async with serving(stalled_reader_s=0.2) as served:
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.port))
        messages = [{"role": "user", "content": "!echo unbounded=1\n" + "x" * 20_000}]
        options = {"num_predict": -1}
        stalled.sendall(
            request_bytes("/api/chat", {"model": "echo", "messages": messages, "options": options})
        )
        await until(lambda: served.slots_used() == 1)
        await served.until_idle(3)
        stalled.close()
