"""Pictures on every wire, by people's own clients, against a model that sees; and one that does not.

`seeing` is the only thing here that knows which model it is.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
import pytest_asyncio
from responding import MEMORY
from websockets.asyncio.client import connect

from support.pictures import base64_of, data_uri, png, positions
from support.seeing_node import Seeing, seeing_echo

RED, BLUE = png(), png(40, 40, (0, 0, 255))


@pytest_asyncio.fixture
async def seeing() -> AsyncIterator[Seeing]:
    async with seeing_echo() as node:
        yield node


def openai_client(seeing: Seeing) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{seeing.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


def anthropic_client(seeing: Seeing) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=seeing.url, api_key="none", max_retries=0, _strict_response_validation=True
    )


def shown(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(data)}}


def said_by_user(*parts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


async def ended(http: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    """A response of the background, once it no longer runs."""
    async with asyncio.timeout(10):
        while True:
            found = (await http.get(f"/v1/responses/{response_id}")).json()
            if found["status"] not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.01)


async def test_the_openai_guide_s_own_chat_example_sees(seeing: Seeing) -> None:
    base64_image = base64_of(RED)
    async with openai_client(seeing) as client:
        completion = await client.chat.completions.create(
            model=seeing.model,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "what's in this image?"},
                        {
                            "type": "image_url",
                            "image_url": {"url": f"data:image/png;base64,{base64_image}"},
                        },
                    ],
                }
            ],
        )
    assert seeing.names(completion.choices[0].message.content, RED)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 3


async def test_the_openai_guide_s_own_responses_example_sees(seeing: Seeing) -> None:
    base64_image = base64_of(RED)
    async with openai_client(seeing) as client:
        response = await client.responses.create(
            model=seeing.model,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "what's in this image?"},
                        {
                            "type": "input_image",
                            "image_url": f"data:image/png;base64,{base64_image}",
                            "detail": "high",
                        },
                    ],
                }
            ],
        )
    assert seeing.names(response.output_text, RED)


async def test_the_anthropic_guide_s_own_examples_see(seeing: Seeing) -> None:
    def image(data: bytes) -> dict[str, Any]:
        source = {"type": "base64", "media_type": "image/png", "data": base64_of(data)}
        return {"type": "image", "source": source}

    async with anthropic_client(seeing) as client:
        one = await client.messages.create(
            model=seeing.model,
            max_tokens=1024,
            messages=said_by_user(image(RED), {"type": "text", "text": "Describe this image."}),
        )
        assert seeing.names(one.content[0].text, RED)
        asked = said_by_user(
            {"type": "text", "text": "Image 1:"},
            image(RED),
            {"type": "text", "text": "Image 2:"},
            image(BLUE),
            {"type": "text", "text": "How are these images different?"},
        )
        async with client.messages.stream(model=seeing.model, max_tokens=1024, messages=asked) as stream:
            two = await stream.get_final_message()
        assert seeing.names(two.content[0].text, RED, BLUE)
        counted = await client.messages.count_tokens(model=seeing.model, messages=asked)
        assert counted.input_tokens == two.usage.input_tokens


async def test_ollama_s_own_client_sees(seeing: Seeing) -> None:
    async with ollama.AsyncClient(seeing.url, timeout=10) as client:
        asked = [{"role": "user", "content": "What are these?", "images": [RED, BLUE]}]
        assert seeing.names((await client.chat(seeing.model, asked)).message.content, RED, BLUE)
        assert seeing.names((await client.generate(seeing.model, "What is it?", images=[RED])).response, RED)


async def test_a_stream_and_several_choices_see(seeing: Seeing) -> None:
    asked: Any = said_by_user(
        {"type": "text", "text": "and"}, shown(RED), {"type": "text", "text": "then"}, shown(BLUE)
    )
    async with openai_client(seeing) as client:
        whole = await client.chat.completions.create(model=seeing.model, messages=asked, n=3)
        assert all(seeing.names(choice.message.content, RED, BLUE) for choice in whole.choices)
        stream = await client.chat.completions.create(model=seeing.model, messages=asked, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert seeing.names(text, RED, BLUE)


async def test_a_count_is_what_the_answer_takes(seeing: Seeing) -> None:
    body = {"model": seeing.model, "messages": said_by_user({"type": "text", "text": "see"}, shown(BLUE))}
    http = seeing.node.http
    counted = (await http.post("/v1/chat/completions/input_tokens", json=body)).json()["input_tokens"]
    answered = (await http.post("/v1/chat/completions", json=body)).json()["usage"]["prompt_tokens"]
    assert counted == answered
    of_text = (
        await http.post(
            "/v1/chat/completions/input_tokens",
            json=body | {"messages": said_by_user({"type": "text", "text": "see"})},
        )
    ).json()
    assert of_text["input_tokens"] < counted


async def test_an_answer_of_a_tool_is_seen_on_responses_and_messages(seeing: Seeing) -> None:
    http = seeing.node.http
    output = [{"type": "input_text", "text": "here: "}, {"type": "input_image", "image_url": data_uri(BLUE)}]
    items = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    bare = [*items[:2], {**items[2], "output": "here: "}]
    counts = [
        (await http.post("/v1/responses/input_tokens", json={"model": seeing.model, "input": each})).json()
        for each in (bare, items)
    ]
    assert counts[0]["input_tokens"] < counts[1]["input_tokens"]


async def test_a_stored_response_is_continued_with_its_picture(seeing: Seeing) -> None:
    sent = said_by_user(
        {"type": "input_text", "text": "remember "},
        {"type": "input_image", "image_url": data_uri(BLUE), "detail": "low"},
    )
    http = seeing.node.http

    async def create(**fields: object) -> dict[str, Any]:
        answer = await http.post("/v1/responses", json={"model": seeing.model} | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = await create(input=sent)
    (item,) = (await http.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    assert item["content"] == sent[0]["content"]
    plain = await create(input="remember ")
    with_picture = await create(input="go on", previous_response_id=first["id"])
    without = await create(input="go on", previous_response_id=plain["id"])
    more = with_picture["usage"]["input_tokens"] - without["usage"]["input_tokens"]
    assert more >= len(BLUE) // 100
    third = await create(input="and on", previous_response_id=with_picture["id"])
    assert third["usage"]["input_tokens"] > with_picture["usage"]["input_tokens"]


async def test_a_conversation_keeps_its_pictures(seeing: Seeing) -> None:
    http = seeing.node.http
    item = {"type": "message", **said_by_user({"type": "input_image", "image_url": data_uri(BLUE)})[0]}
    made = (await http.post("/v1/conversations", json={"items": [item]})).json()
    kept = (await http.get(f"/v1/conversations/{made['id']}/items")).json()["data"]
    assert kept[0]["content"][0]["image_url"] == data_uri(BLUE)
    body = {"model": seeing.model, "input": "go on", "conversation": made["id"]}
    answered = (await http.post("/v1/responses", json=body)).json()
    assert answered["usage"]["input_tokens"] > len(BLUE) // 100


async def test_the_background_and_the_socket_see(seeing: Seeing) -> None:
    http = seeing.node.http
    body = {"model": seeing.model, "input": said_by_user({"type": "input_image", "image_url": data_uri(RED)})}
    begun = (await http.post("/v1/responses", json=body | {"background": True})).json()
    found = await ended(http, begun["id"])
    assert seeing.names(found["output"][0]["content"][0]["text"], RED)
    async with connect(f"{seeing.url.replace('http', 'ws')}/v1/responses", max_size=None) as socket:
        await socket.send(json.dumps({"type": "response.create"} | body))
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "response.completed":
                break
    assert seeing.names(event["response"]["output"][0]["content"][0]["text"], RED)


async def test_the_list_of_models_says_who_sees(seeing: Seeing) -> None:
    listed = (await seeing.node.http.get("/v1/models")).json()["data"]
    assert ["vision" in model["capabilities"] for model in listed if model["id"] == seeing.model] == [True]


SENT = {
    "/v1/chat/completions": {"messages": said_by_user({"type": "text", "text": "?"}, shown(RED))},
    "/v1/chat/completions/input_tokens": {
        "messages": said_by_user({"type": "text", "text": "?"}, shown(RED))
    },
    "/v1/responses": {
        "input": said_by_user(
            {"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": data_uri(RED)}
        )
    },
    "/v1/responses/input_tokens": {
        "input": said_by_user(
            {"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": data_uri(RED)}
        )
    },
}
MESSAGE = {
    "max_tokens": 9,
    "messages": said_by_user(
        {"type": "text", "text": "?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(RED)}},
    ),
}


@pytest.mark.parametrize("path", SENT)
async def test_a_model_without_eyes_refuses_by_name_on_openai_s_wires(serving, path: str) -> None:
    async with serving(storage=MEMORY) as served:
        answer = await served.http.post(path, json={"model": "echo"} | SENT[path])
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (
        400,
        "invalid_request_error",
        "vision_unsupported",
    )
    assert error["param"].endswith("[0].content[1]")
    assert (error["model"], error["suggestion"]) == ("echo", "send text only")


async def test_a_model_without_eyes_refuses_by_name_on_the_other_wires(serving) -> None:
    async with serving(storage=MEMORY) as served:
        http: httpx.AsyncClient = served.http
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            body = {key: value for key, value in MESSAGE.items() if "count" not in path or key == "messages"}
            answer = await http.post(path, json={"model": "echo"} | body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
            assert "reads text only" in answer.json()["error"]["message"]
        for path, sent in (
            ("/api/generate", {"prompt": "?", "images": [base64_of(RED)]}),
            ("/api/chat", {"messages": [{"role": "user", "content": "?", "images": [base64_of(RED)]}]}),
        ):
            answer = await http.post(path, json={"model": "echo"} | sent)
            assert answer.status_code == 400
            assert "reads text only" in answer.json()["error"]


async def test_a_background_response_with_a_picture_fails_by_name_without_eyes(serving) -> None:
    async with serving(storage=MEMORY) as served:
        body = {"model": "echo", "background": True} | SENT["/v1/responses"]
        begun = (await served.http.post("/v1/responses", json=body)).json()
        found = await ended(served.http, begun["id"])
    assert (found["status"], "reads text only" in found["error"]["message"]) == ("failed", True)


async def test_a_sound_is_refused_by_name_where_nobody_hears(seeing: Seeing) -> None:
    sound = {
        "type": "input_audio",
        "input_audio": {"data": base64_of(b"ID3\x04" + bytes(40)), "format": "mp3"},
    }
    body = {"model": seeing.model, "messages": said_by_user(sound)}
    error = (await seeing.node.http.post("/v1/chat/completions", json=body)).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages[0].content[0]")


async def test_tokens_of_a_chat_have_a_place_for_each_position_of_a_picture(seeing: Seeing) -> None:
    body = {"model": seeing.model, "messages": said_by_user({"type": "text", "text": "see"}, shown(BLUE))}
    told = (await seeing.node.http.post("/tokenize", json=body | {"return_token_strs": True})).json()
    assert (told["tokens"].count(-1), told["count"]) == (positions(BLUE), 1 + positions(BLUE))
    assert told["token_strs"] == ["see"] + [""] * positions(BLUE)
