"""Chat through the door that clients use: the official SDK, and raw requests where it hides too much."""

import asyncio
import json

import openai
import pytest

from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings


def sdk(served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


def frames(text: str) -> list[str]:
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part]


async def test_the_openai_sdk_reads_whole_answers_strictly(serving) -> None:
    async with serving() as served, sdk(served) as client:
        answer = await client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": "one two three"}],
            n=2,
            logprobs=True,
            top_logprobs=2,
            seed=1,
        )
        assert [choice.message.content for choice in answer.choices] == ["one two three"] * 2
        assert answer.choices[0].finish_reason == "stop"
        assert [token.token for token in answer.choices[1].logprobs.content] == ["one", " two", " three"]
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)
        listed = [model.id async for model in client.models.list()]
        assert listed == ["echo"]
        assert (await client.models.retrieve("echo")).context_length == 8192


async def test_the_openai_sdk_reads_streams_strictly(serving) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(reasoning="let me see"))
    async with serving(engine) as served, sdk(served) as client:
        stream = await client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": "one two three"}],
            stream=True,
            stream_options={"include_usage": True},
            n=2,
            max_tokens=5,
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens == 10
        assert all(chunk.usage is None for chunk in chunks[:-1])
        for index in range(2):
            own = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
            assert "".join(choice.delta.content or "" for choice in own) == "one two"
            thoughts = [getattr(choice.delta, "reasoning_content", "") or "" for choice in own]
            assert "".join(thoughts) == "let me see"
            assert own[-1].finish_reason == "length"


async def test_the_openai_sdk_raises_what_the_envelope_says(serving) -> None:
    async with serving() as served, sdk(served) as client:
        hello = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=hello)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model="echo", messages=hello, temperature=7)
        assert wrong.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as beams:
            await client.chat.completions.create(
                model="echo", messages=hello, extra_body={"use_beam_search": True}
            )
        assert (beams.value.code, beams.value.param) == ("unsupported_parameter", "use_beam_search")


async def test_a_failure_after_the_first_byte_is_one_error_frame_and_the_end(serving) -> None:
    async with serving() as served:
        response = await served.post("!echo fail_at=2 delay=0.01\none two three", stream=True)
        assert response.status_code == 200
        *chunks, last = frames(response.text)
        assert json.loads(last)["error"]["code"] == "engine_failed"
        assert len(chunks) == 3
        assert "[DONE]" not in response.text


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_failure_before_the_first_byte_is_a_status(serving, is_streamed) -> None:
    async with serving() as served:
        response = await served.post("!echo fail_at=0\none", stream=is_streamed)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_failed"
        assert response.headers["content-type"] == "application/json"


async def test_the_stream_opens_after_a_while_without_a_token_and_stays_alive(serving) -> None:
    async with serving(first_byte_s=0.1, keep_alive_s=0.05) as served:
        began_s = asyncio.get_running_loop().time()
        body = served.chat("!echo first_token_delay=0.4\none two", stream=True)
        async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            parts = response.aiter_text()
            first = await anext(parts)
            waited_s = asyncio.get_running_loop().time() - began_s
            assert 0.08 < waited_s < 0.35
            assert '"role":"assistant"' in first
            rest = "".join([part async for part in parts])
        assert 3 <= rest.count(": keep-alive\n\n") <= 8
        assert rest.count('"role"') == 0
        assert rest.endswith("data: [DONE]\n\n")


async def test_a_failure_after_the_silent_opening_is_an_error_frame(serving) -> None:
    async with serving(first_byte_s=0.05) as served:
        response = await served.post("!echo first_token_delay=0.2 fail_at=0\none", stream=True)
        assert response.status_code == 200
        assert json.loads(frames(response.text)[-1])["error"]["code"] == "engine_failed"


async def test_requests_before_the_engine_is_open_say_that_it_loads(serving) -> None:
    async with serving(EchoEngine(EchoSettings(open_delay_s=0.3))) as served:
        response = await served.post()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")
        assert response.headers["retry-after"] == "10"
        assert (await served.http.get("/health/ready")).status_code == 503
        assert (await served.http.get("/health")).json()["activation"]["in_progress"] == "echo"
        await asyncio.sleep(0.35)
        assert (await served.http.get("/health/ready")).status_code == 200
        assert (await served.post()).status_code == 200


async def test_headers_ask_for_thought_and_markers(serving) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(reasoning="hm"))
    async with serving(engine) as served:
        post = served.http.post
        path = "/v1/chat/completions"
        plain = (await post(path, json=served.chat("yes"))).json()
        assert "thought" not in plain
        thought = (await post(path, json=served.chat("yes"), headers={"x-thought": "1"})).json()
        assert thought["thought"] == "hm"
        marked = (await post(path, json=served.chat("yes"), headers={"x-include-thinking": "1"})).json()
        assert marked["choices"][0]["message"]["content"] == "<think>hm</think>yes"


async def test_every_response_carries_a_request_id_and_only_sane_ones_are_taken(serving) -> None:
    async with serving() as served:
        for path in ("/v1/models", "/nowhere", "/v1/chat/completions"):
            kept = await served.http.get(path, headers={"x-request-id": "abc-123_X"})
            assert kept.headers["x-request-id"] == "abc-123_X"
            for hostile in ("x" * 65, "a b", "", "a;b"):
                made = await served.http.get(path, headers={"x-request-id": hostile})
                assert len(made.headers["x-request-id"]) == 32


async def test_what_is_not_there_is_told_in_the_envelope(serving) -> None:
    async with serving() as served:
        missing = await served.http.get("/v1/nowhere")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        wrong = await served.http.get("/v1/chat/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        nobody = await served.http.get("/v1/models/org/none")
        assert (nobody.status_code, nobody.json()["error"]["param"]) == (404, "model")
        assert (await served.http.get("/v1/models/")).status_code == 404


async def test_an_alias_means_its_model_in_any_case(serving) -> None:
    async with serving(EchoEngine(EchoSettings(aliases=("Parrot",)))) as served:
        assert (await served.post("hello", model="pARROT")).status_code == 200
        for path in ("/v1/models/pARROT", "/models/pARROT/endpoint", "/models/pARROT/capabilities"):
            assert (await served.http.get(path)).status_code == 200, path
        assert (await served.http.get("/v1/models/ECHO")).status_code == 404  # an id is exact


async def test_bodies_are_json_and_bounded(serving) -> None:
    async with serving(max_body_bytes=1000) as served:
        path = "/v1/chat/completions"
        form = await served.http.post(path, data={"a": "b"})
        assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")
        bare = await served.http.post(path, content=b"{}")
        assert bare.status_code == 415
        large = await served.post("x" * 1000)
        assert (large.status_code, large.json()["error"]["max_bytes"]) == (413, 1000)

        async def endless():
            for _ in range(50):
                yield b"x" * 100

        chunked = await served.http.post(
            path, content=endless(), headers={"content-type": "application/json"}
        )
        assert chunked.status_code == 413
        assert (await served.post("fits")).status_code == 200


async def test_a_body_that_never_comes_is_given_up(serving) -> None:
    async with serving(body_s=0.1) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
        assert b" 504 " in await asyncio.wait_for(reader.readline(), 2)
        writer.close()
        await writer.wait_closed()


async def test_unknown_fields_pass_unless_strict(serving) -> None:
    async with serving() as served:
        assert (await served.post(zebra=1)).status_code == 200
    async with serving(is_strict=True) as served:
        refused = (await served.post(zebra=1)).json()["error"]
        assert (refused["code"], refused["param"]) == ("unknown_parameter", "zebra")


async def test_events_that_are_there_together_leave_in_one_write(serving) -> None:
    async with serving() as served:
        body = served.chat("word " * 200, stream=True)
        async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            text = "".join([part async for part in response.aiter_text()])
        assert text.count('"content":"') == 201 + 1
        assert text.endswith("data: [DONE]\n\n")


async def test_the_pages_are_self_contained(serving) -> None:
    async with serving() as served:
        for path in ("/", "/docs"):
            page = await served.http.get(path)
            assert page.status_code == 200
            assert page.headers["content-security-policy"].startswith("default-src 'none'")
            assert "src=" not in page.text
            assert "<script" not in page.text
        assert (await served.http.head("/")).status_code == 200
        assert "echo" in (await served.http.get("/")).text
    async with serving(api_keys=("k",)) as served:
        assert "<code>echo</code>" not in (await served.http.get("/")).text


async def test_the_door_itself_is_bounded(serving) -> None:
    async with serving(max_in_flight=2) as served:
        running = [asyncio.create_task(served.post("!echo first_token_delay=0.3\none")) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused = await served.post()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"]
        assert [response.status_code for response in await asyncio.gather(*running)] == [200, 200]
