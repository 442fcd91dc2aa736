"""The acceptance cases of Open Responses, and what a response says of how it was sampled, on a real node.

The model is played: these are cases of the wire. Every whole body and every event is held to the schema in
`open_responses`, every stream to `responses_invariants`.
"""

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from responding import MEMORY, Asking, ask, played, said_to, text_of
from test_responses_socket import talking

from ganglion.core.sampling import Sampling
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from support.open_responses import COMPACTED, ITEM_PAGE, SOCKET_ERROR, check_response
from support.played_engine import PlayedEngine

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
}
CALLING = EchoScript(reply="", calls=(ScriptedCall("get_weather", '{"location":"Oslo"}'),))
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def said(role: str, content: object) -> dict[str, object]:
    return {"type": "message", "role": role, "content": content}


@asynccontextmanager
async def asking(serving, engine: PlayedEngine | EchoEngine | None = None):
    async with serving(engine or played(), storage=MEMORY) as served:
        yield Asking(served.http)


ANSWERED: dict[str, dict[str, Any]] = {
    "a message": {"said": [said("user", "Say hello.")]},
    "a text": {"said": "Say hello."},
    "a system prompt": {"said": [said("system", "Be a pirate."), said("user", "Say hello.")]},
    "several turns": {
        "said": [said("user", "I am Ada."), said("assistant", "Hello Ada."), said("user", "Who am I?")]
    },
    "hosted tools, which are echoed": {
        "said": "Find it.",
        "tools": [
            {"type": "file_search", "vector_store_ids": ["vs_1"]},
            {"type": "web_search", "external_web_access": False},
        ],
    },
    "everything that is echoed": {
        "said": "x",
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "tools": [WEATHER],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [WEATHER]},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "auto",
        "service_tier": "flex",
        "top_logprobs": 2,
    },
}


@pytest.mark.parametrize("case", ANSWERED)
async def test_an_answer_is_whole_streamed_and_stored_in_the_published_shapes(serving, case: str) -> None:
    fields = ANSWERED[case]
    async with asking(serving) as client:
        whole = await client.create(**fields)
        check_response(whole)
        assert whole["status"] == "completed"
        assert whole["output"]
        streamed = await client.stream(**fields)
        assert streamed["output"][-1]["content"] == whole["output"][-1]["content"]
        kept = await client.get(streamed["id"])
        assert kept == streamed
        page = await client.ok("GET", f"/v1/responses/{whole['id']}/input_items")
        ITEM_PAGE(page, "page")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_tool_is_called_and_answered(serving, is_streamed: bool) -> None:
    async with asking(serving, played(CALLING, EchoScript(reply="Rain."))) as client:
        make = client.stream if is_streamed else client.create
        first = await make("Weather in Oslo?", tools=[WEATHER])
        check_response(first)
        (called,) = first["output"]
        assert (called["type"], json.loads(called["arguments"])) == ("function_call", {"location": "Oslo"})
        output = {"type": "function_call_output", "call_id": called["call_id"], "output": "rain"}
        second = await make([output], previous_response_id=first["id"], tools=[WEATHER])
        assert text_of(second) == "Rain."
        ITEM_PAGE(await client.ok("GET", f"/v1/responses/{second['id']}/input_items"), "page")


async def test_what_a_text_model_cannot_read_is_refused_by_name(serving) -> None:
    async with asking(serving) as client:
        for part, code in (
            ({"type": "input_image", "image_url": PIXEL}, "vision_unsupported"),
            ({"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"}, "unsupported_parameter"),
        ):
            body = ask([said("user", [{"type": "input_text", "text": "See?"}, part])])
            assert await client.error("POST", "/v1/responses", body) == (400, code, "input[0].content[1]")


async def test_a_conversation_is_named_by_its_responses_and_a_compaction_is_gone_on_with(serving) -> None:
    async with asking(serving, played(EchoScript(reply="OK."))) as client:
        made = await client.ok("POST", "/v1/conversations", {})
        response = await client.create("hi", conversation=made["id"])
        check_response(response)
        assert response["conversation"] == {"id": made["id"]}
        compact = await client.ok("POST", "/v1/responses/compact", ask([said("user", "Remember slate.")]))
        COMPACTED(compact, "compaction")
        further = await client.create([*compact["output"], said("user", "Go on.")], store=False)
        check_response(further)
        assert further["status"] == "completed"


async def test_one_socket_answers_in_turn_and_continues_what_it_did_not_store(serving) -> None:
    engine = played(EchoScript(reply="OK."))
    async with serving(engine, storage=MEMORY) as served, talking(served) as talk:
        first = await talk.create("Remember cobalt.", store=False)
        second = await talk.create("Which word?", store=False, previous_response_id=first["id"])
        for response in (first, second):
            check_response(response)
            assert response["status"] == "completed"
        assert [content for _, content, *_ in said_to(engine)] == ["Remember cobalt.", "OK.", "Which word?"]
        compact = await Asking(served.http).ok("POST", "/v1/responses/compact", ask("Remember slate."))
        begun = await talk.create([*compact["output"], said("user", "Go on.")], store=False, tools=[])
        assert begun["status"] == "completed"


async def test_what_a_socket_did_not_store_is_gone_after_it_and_after_a_turn_that_failed(serving) -> None:
    orphan = {"type": "function_call_output", "call_id": "call_nobody", "output": "x"}
    async with serving(played(EchoScript(reply="OK.")), storage=MEMORY) as served:
        async with talking(served) as talk:
            first = await talk.create("Remember ember.", store=False)
            failed = await talk.create([orphan], store=False, previous_response_id=first["id"])
            assert (failed["status"], failed["error"]["param"]) == (400, "input[0].call_id")
            SOCKET_ERROR(failed, "error")
            gone = await talk.create("And?", store=False, previous_response_id=first["id"])
            assert (gone["status"], gone["error"]["code"]) == (404, "previous_response_not_found")
            left = await talk.create("Remember copper.", store=False)
            unrelated = await talk.create("x", model="nobody", store=False)
            assert unrelated["status"] == 404
            still = await talk.create("And?", store=False, previous_response_id=left["id"])
            assert still["status"] == "completed", "a failure that named nothing takes nothing with it"
        async with talking(served) as talk:
            lost = await talk.create("And?", store=False, previous_response_id=still["id"])
            assert lost["error"]["code"] == "previous_response_not_found"
            assert (await talk.create("Anew.", store=False))["status"] == "completed"


OWN = Sampling(temperature=0.6, top_p=0.8, presence_penalty=0.5)
SAMPLED = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def sampled(response: dict[str, Any]) -> list[float]:
    return [response[name] for name in SAMPLED]


def own(**fields: object) -> EchoEngine:
    return EchoEngine(EchoSettings(sampling=OWN, allow_directives=True, aliases=("other",), **fields))


async def test_what_was_left_out_is_told_as_the_models_own_defaults_everywhere(serving) -> None:
    async with asking(serving, own()) as client:
        for model in ("echo", "OTHER"):
            whole = await client.create("hi", model=model)
            assert sampled(whole) == [0.6, 0.8, 0.5, 0.0]
            assert sampled(await client.get(whole["id"])) == [0.6, 0.8, 0.5, 0.0]
        assert whole["text"]["verbosity"] == "medium"
        body = ask("!echo delay=0.01\none two three", background=True, stream=True)
        answer = await client.call("POST", "/v1/responses", body)
        lives = [line for line in answer.text.splitlines() if '"response":{' in line]
        assert len(lives) >= 4
        assert all(sampled(json.loads(line[6:])["response"]) == [0.6, 0.8, 0.5, 0.0] for line in lives)


async def test_what_was_asked_for_is_told_as_it_was_asked(serving) -> None:
    async with asking(serving, own()) as client:
        asked = {"temperature": 0, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 1.5}
        assert sampled(await client.create("hi", **asked)) == [0, 1, 0, 1.5]
        assert sampled(await client.stream("hi", temperature=1.5)) == [1.5, 0.8, 0.5, 0.0]
        verbose = await client.create("hi", text={"verbosity": "low"})
        assert verbose["text"] == {"format": {"type": "text"}, "verbosity": "low"}


async def test_a_model_that_says_nothing_is_told_by_the_calibrated_defaults(serving) -> None:
    async with asking(serving) as client:
        assert sampled(await client.create("hi")) == [1.0, 0.95, 0.0, 0.0]
