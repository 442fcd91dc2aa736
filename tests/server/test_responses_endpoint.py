"""The official SDK, with strict validation, against the Responses door on a real socket."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from pydantic import BaseModel

from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from support.responses_invariants import check

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CODEX = [WEATHER, {"type": "web_search", "external_web_access": False}, {"type": "custom", "name": "patch"}]


class City(BaseModel):
    name: str


@asynccontextmanager
async def client(serving, script: EchoScript | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    engine = EchoEngine(EchoSettings(allow_directives=True), script)
    async with (
        serving(engine) as served,
        openai.AsyncOpenAI(
            base_url=served.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True
        ) as found,
    ):
        yield found


async def test_a_whole_answer(serving) -> None:
    async with client(serving) as sdk:
        response = await sdk.responses.create(model="echo", input="hello there", instructions="Be brief.")
    assert response.output_text == "hello there"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.input_tokens_details.cache_write_tokens == 0
    assert response.instructions == "Be brief."
    assert response.completed_at is not None


async def test_a_stream_and_the_sdks_own_accumulation_of_it(serving) -> None:
    script = EchoScript(
        reasoning="let me see", reply="it is fine", calls=(ScriptedCall("weather", '{"city":"Oslo"}'),)
    )
    async with (
        client(serving, script) as sdk,
        sdk.responses.stream(model="echo", input="hi", tools=CODEX) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "it is fine"


async def test_three_turns_replay_our_own_output_items(serving) -> None:
    script = EchoScript(reasoning="hm", calls=(ScriptedCall("weather", "{}"),))
    async with client(serving, script) as sdk:
        items: list[object] = []
        for turn in range(3):
            items.append({"role": "user", "content": f"turn {turn}"})
            response = await sdk.responses.create(
                model="echo",
                input=items,
                tools=CODEX,
                store=False,
                include=["reasoning.encrypted_content"],
            )
            assert response.output_text == f"turn {turn}"
            items += [item.model_dump(exclude_none=True) for item in response.output]
            called = response.output[-1]
            assert called.type == "function_call"
            items.append({"type": "function_call_output", "call_id": called.call_id, "output": "sunny"})
    assert len(items) == 15


async def test_structured_output_is_parsed_by_the_sdk(serving) -> None:
    async with client(serving, EchoScript(reply='{"name":"Oslo"}')) as sdk:
        response = await sdk.responses.parse(model="echo", input="where?", text_format=City)
    assert response.output_parsed == City(name="Oslo")


async def test_logprobs_and_a_cut_answer(serving) -> None:
    async with client(serving) as sdk:
        response = await sdk.responses.create(
            model="echo", input="one two three", top_logprobs=2, max_output_tokens=2
        )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    message = response.output[0]
    assert message.type == "message"
    assert message.status == "incomplete"
    assert message.content[0].type == "output_text"
    assert len(message.content[0].logprobs or []) == 2


@pytest.mark.parametrize(
    ("wrong", "code", "status"),
    [
        ({"model": "nobody"}, "model_not_found", 404),
        ({"input": [{"type": "nonsense"}]}, "invalid_value", 400),
        ({"input": "word " * 9000}, "context_length_exceeded", 400),
        ({"previous_response_id": "resp_x"}, "previous_response_not_found", 404),
        ({"input": "!echo fail_at=0\nhi"}, "engine_failed", 500),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_failure_before_the_first_byte_is_a_status(
    serving, wrong: dict[str, object], code: str, status: int, is_streamed: bool
) -> None:
    async with client(serving) as sdk:
        with pytest.raises(openai.APIStatusError) as caught:
            await sdk.responses.create(**{"model": "echo", "input": "hi", "stream": is_streamed, **wrong})
    assert (caught.value.status_code, caught.value.code) == (status, code)


async def test_a_failure_after_the_first_byte_ends_the_stream_with_response_failed(serving) -> None:
    async with serving() as served:
        asked = {"model": "echo", "input": "!echo fail_at=2\none two three four", "stream": True}
        answer = await served.http.post("/v1/responses", json=asked)
    response = check(answer.content)
    assert response["error"]["reason"] == "engine_failed"
    assert response["output"][0]["status"] == "incomplete"


async def test_a_slow_start_is_filled_with_in_progress(serving) -> None:
    async with serving(first_byte_s=0.02, keep_alive_s=0.05) as served:
        asked = {"model": "echo", "input": "!echo first_token_delay=0.3\nhi", "stream": True}
        answer = await served.http.post("/v1/responses", json=asked)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.content.count(b"event: response.in_progress\n") > 2
    assert json.dumps(check(answer.content)["output"]).count("hi") == 1
