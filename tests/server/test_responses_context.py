"""Prompts that do not fit: refused, shortened or compacted; and how long a prompt is."""

import pytest
from responding import MEMORY, Asking, ask, played, said_to, small, text_of

from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from support.responses_invariants import check

LONG = "word " * 199 + "word"
TURNS = [{"role": "user", "content": f"turn {number} " + "x " * 10} for number in range(8)]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_is_too_long_is_a_400_that_names_the_input(serving, is_streamed: bool) -> None:
    async with serving(small(100), storage=MEMORY) as served:
        refused = await Asking(served.http).call("POST", "/v1/responses", ask(LONG, stream=is_streamed))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert (error["reason"], error["prompt_len"], error["max"]) == ("prompt_too_long", 200, 100)


@pytest.mark.parametrize(
    "headers",
    [{"originator": "codex_exec"}, {"originator": "codex_cli_rs"}, {"user-agent": "codex_exec/0.46"}],
)
async def test_codex_is_told_by_response_failed(serving, headers: dict[str, str]) -> None:
    async with serving(small(100), storage=MEMORY) as served:
        answer = await served.http.post("/v1/responses", json=ask(LONG, stream=True), headers=headers)
        failed = check(answer.content)
        assert failed["error"]["code"] == "context_length_exceeded"
        assert await Asking(served.http).get(failed["id"]) == failed
        whole = await served.http.post("/v1/responses", json=ask(LONG), headers=headers)
        assert whole.status_code == 400
        other = await served.http.post(
            "/v1/responses", json=ask("hi", model="x", stream=True), headers=headers
        )
        assert other.status_code == 404


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_truncation_drops_the_oldest_turns_and_keeps_what_systems_said(
    serving, is_streamed: bool
) -> None:
    engine = played(EchoScript(reply="fine"), context=60)
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        create = asking.stream if is_streamed else asking.create
        response = await create([{"role": "developer", "content": "Be kind."}, *TURNS], truncation="auto")
        assert (text_of(response), response["truncation"]) == ("fine", "auto")
        said = said_to(engine)
        assert said[0][:2] == ("developer", "Be kind.")
        assert said[-1][1] == TURNS[-1]["content"]
        assert 2 <= len(said) < 6
        assert said[1:] == [("user", turn["content"], None, None, []) for turn in TURNS[-len(said) + 1 :]]
        kept = await asking.ok("GET", f"/v1/responses/{response['id']}/input_items")
        assert len(kept["data"]) == 9, "what was sent is kept whole"


async def test_input_tokens_are_counted_of_what_truncation_leaves(serving) -> None:
    async with serving(played(EchoScript(reply="fine"), context=60), storage=MEMORY) as served:
        asking = Asking(served.http)
        for fields in ({"truncation": "auto"}, {"truncation": "auto", "max_output_tokens": 0}):
            response = await asking.create(TURNS, **fields)
            counted = await asking.ok("POST", "/v1/responses/input_tokens", ask(TURNS, **fields))
            assert 0 < counted["input_tokens"] == response["usage"]["input_tokens"] <= 60
        for told in (ask(TURNS), ask(LONG, truncation="auto")):
            counted = await asking.ok("POST", "/v1/responses/input_tokens", told)
            assert counted["input_tokens"] > 60, "what cannot be shortened is told as it is"


async def test_truncation_of_one_long_turn_is_still_refused(serving) -> None:
    async with serving(small(100), storage=MEMORY) as served:
        refused = await Asking(served.http).error("POST", "/v1/responses", ask(LONG, truncation="auto"))
        assert refused == (400, "context_length_exceeded", "input")


async def test_truncation_never_parts_a_call_from_its_output(serving) -> None:
    engine = played(EchoScript(reply="fine"), context=60)
    turns: list[object] = []
    for number in range(8):
        called = {"type": "function_call", "call_id": f"call_{number}", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": f"call_{number}", "output": "y " * 10}
        turns += [{"role": "user", "content": f"turn {number}"}, called, output]
    async with serving(engine, storage=MEMORY) as served:
        await Asking(served.http).create(turns, truncation="auto")
    called, answered = [], []
    for _, _, _, answers, calls in said_to(engine):
        called += [call_id for call_id, *_ in calls]
        answered += [answers] if answers else []
    assert called == answered
    assert called[-1] == "call_7"


async def test_a_compacted_conversation_goes_on_where_it_was(serving) -> None:
    engine = played(
        EchoScript(reasoning="hm", reply="It is blue.", calls=(ScriptedCall("f"),)),
        EchoScript(reply="Sky is blue."),
    )
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        first = await asking.create("what colour is the sky?", instructions="Look up.")
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "blue"}
        body = {"model": "echo", "input": [output], "previous_response_id": first["id"]}
        compacted = await asking.ok("POST", "/v1/responses/compact", body)
        assert compacted["object"] == "response.compaction"
        assert compacted["usage"]["total_tokens"] > 0
        said, summary = compacted["output"]
        assert (said["role"], said["content"][0]["text"]) == ("user", "what colour is the sky?")
        assert (summary["type"], set(summary)) == ("compaction", {"type", "id", "encrypted_content"})
        again = [*compacted["output"], {"role": "user", "content": "and the sea?"}]
        second = await asking.create(again)
        contents = [content for _, content, *_ in said_to(engine)]
        assert contents[0] == "what colour is the sky?"
        assert contents[1].endswith("Sky is blue.")
        assert contents[2] == "and the sea?"
        twice = await asking.ok("POST", "/v1/responses/compact", ask([], previous_response_id=second["id"]))
        assert [item["type"] for item in twice["output"]] == ["message", "message", "compaction"]
        assert said_to(engine)[1][1].endswith("Sky is blue."), "a summary is summarized with the rest"
        stranger = {"type": "compaction", "encrypted_content": "AAAA"}
        refused = await asking.error("POST", "/v1/responses", ask([stranger]))
        assert refused == (400, "invalid_value", "input[0].encrypted_content")


async def test_what_is_too_long_to_be_answered_can_be_compacted(serving) -> None:
    async with serving(small(100), storage=MEMORY) as served:
        asking = Asking(served.http)
        turns = [{"role": "user", "content": f"turn {number} " + "x " * 10} for number in range(20)]
        assert (await asking.error("POST", "/v1/responses", ask(turns)))[1] == "context_length_exceeded"
        compacted = await asking.ok("POST", "/v1/responses/compact", ask(turns))
        assert compacted["output"][-1]["type"] == "compaction"


@pytest.mark.parametrize("said", ["hello there you", TURNS])
async def test_input_tokens_are_those_that_an_answer_counts(serving, said: object) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        fields = {"instructions": "Be brief and be kind."}
        first = await asking.create(said, **fields)
        counted = await asking.ok("POST", "/v1/responses/input_tokens", ask(said, **fields))
        assert counted == {
            "object": "response.input_tokens",
            "input_tokens": first["usage"]["input_tokens"],
        }
        more = {"previous_response_id": first["id"]}
        second = await asking.create("and more", **more)
        counted = await asking.ok("POST", "/v1/responses/input_tokens", ask("and more", **more))
        assert counted["input_tokens"] == second["usage"]["input_tokens"]


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/responses/input_tokens", "/v1/conversations"])
async def test_what_is_wrong_is_told_there_too(serving, path: str) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        for body in ([], "x", {"model": 5, "metadata": 5, "items": 5}):
            answer = await asking.call("POST", path, body)
            assert answer.status_code == 400, answer.text
        raw = await served.http.post(path, content=b"{", headers={"content-type": "application/json"})
        assert (raw.status_code, raw.json()["error"]["code"]) == (400, "invalid_json")
