"""What a response continues reaches the model exactly, and what was kept can be read, paged and deleted."""

import pytest
from responding import MEMORY, Asking, ask, plain, played, said_to, text_of

from ganglion.engines.echo.answer import EchoScript, ScriptedCall

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch"}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_chain_replays_calls_and_their_outputs_exactly(serving, is_streamed: bool) -> None:
    engine = played(
        EchoScript(
            reasoning="hm",
            reply="let me look",
            calls=(ScriptedCall("weather", '{"city":"Oslo"}'), ScriptedCall("patch", "p")),
        ),
        EchoScript(reply="It rains."),
    )
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        create = asking.stream if is_streamed else asking.create
        first = await create("what is it like in Oslo?", tools=[WEATHER, PATCH], instructions="Be brief.")
        function, custom = first["output"][2:]
        outputs = [
            {"type": "function_call_output", "call_id": function["call_id"], "output": "rain"},
            {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "done"},
        ]
        second = await create(outputs, tools=[WEATHER, PATCH], previous_response_id=first["id"])
        third = await create("thanks", previous_response_id=second["id"])
    calls = [(function["call_id"], "weather", '{"city":"Oslo"}'), (custom["call_id"], "patch", "p")]
    before = [
        plain("user", "what is it like in Oslo?"),
        ("assistant", "let me look", "hm", None, calls),
        ("tool", "rain", None, function["call_id"], []),
        ("tool", "done", None, custom["call_id"], []),
    ]
    assert said_to(engine, 0) == [plain("system", "Be brief."), before[0]]
    assert said_to(engine, 1) == before, "instructions are not carried over"
    assert said_to(engine, 2) == [*before, plain("assistant", "It rains."), plain("user", "thanks")]
    assert (second["previous_response_id"], third["previous_response_id"]) == (first["id"], second["id"])
    assert [item["type"] for item in first["output"]] == [
        *("reasoning", "message", "function_call", "custom_tool_call")
    ]


async def test_a_chain_branches_wherever_it_is_continued(serving) -> None:
    engine = played(EchoScript())
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        root = await asking.create("root")
        left = await asking.create("left", previous_response_id=root["id"])
        await asking.create("right", previous_response_id=root["id"])
        await asking.create("leaf", previous_response_id=left["id"])
    assert [content for _, content, *_ in said_to(engine, 2)] == ["root", "root", "right"]
    assert [content for _, content, *_ in said_to(engine, 3)] == ["root", "root", "left", "left", "leaf"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_is_not_to_be_stored_never_is(serving, tmp_path, is_streamed: bool) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        create = asking.stream if is_streamed else asking.create
        response = await create("hush", store=False)
        assert response["store"] is False
        assert await asking.error("GET", f"/v1/responses/{response['id']}") == (
            404,
            "response_not_found",
            None,
        )
        continued = ask("and?", previous_response_id=response["id"])
        assert await asking.error("POST", "/v1/responses", continued) == (
            *(404, "previous_response_not_found"),
            "previous_response_id",
        )
        item = {"type": "item_reference", "id": response["output"][0]["id"]}
        assert await asking.error("POST", "/v1/responses", ask([item])) == (
            404,
            "item_not_found",
            "input[0].id",
        )


async def test_reasoning_comes_back_by_its_text_its_seal_and_its_id(serving) -> None:
    engine = played(EchoScript(reasoning="two and two", reply="four"))
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        first = await asking.create("sum?", include=["reasoning.encrypted_content"])
        thought, message = first["output"]
        sealed = {"type": "reasoning", "id": thought["id"], "summary": []}
        sealed["encrypted_content"] = thought["encrypted_content"]
        bare = {"type": "reasoning", "summary": [], "content": thought["content"]}
        user = {"role": "user", "content": "sum?"}
        for form in (sealed, bare, {"type": "item_reference", "id": thought["id"]}, {"id": thought["id"]}):
            await asking.create([user, form, message, {"role": "user", "content": "sure?"}], store=False)
            assert said_to(engine) == [
                plain("user", "sum?"),
                ("assistant", "four", "two and two", None, []),
                plain("user", "sure?"),
            ]
        await asking.create([user, sealed | {"encrypted_content": "AAAA"}, message], store=False)
        assert said_to(engine)[1] == plain("assistant", "four"), "a foreign thought is left out"


async def test_a_conversation_takes_in_what_was_asked_and_said(serving) -> None:
    engine = played(EchoScript(calls=(ScriptedCall("weather"),)), EchoScript(reply="Rain."))
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        opening = {"items": [{"role": "developer", "content": "Rhyme."}], "metadata": {"topic": "weather"}}
        talk = await asking.ok("POST", "/v1/conversations", opening)
        first = await asking.create("Oslo?", conversation=talk["id"], tools=[WEATHER])
        called = first["output"][-1]
        output = {"type": "function_call_output", "call_id": called["call_id"], "output": "wet"}
        second = await asking.stream([output], conversation={"id": talk["id"]}, tools=[WEATHER])
        items = (await asking.ok("GET", f"/v1/conversations/{talk['id']}/items", order="asc"))["data"]
    assert first["conversation"] == second["conversation"] == {"id": talk["id"]}
    assert [content for _, content, *_ in said_to(engine)] == ["Rhyme.", "Oslo?", "Oslo?", "wet"]
    assert [item["type"] for item in items] == [
        *("message", "message", "message", "function_call", "function_call_output", "message")
    ]
    assert items[2:4] == first["output"]
    assert items[5] == second["output"][0]


async def test_a_turn_that_failed_is_no_part_of_the_conversation(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        talk = await asking.ok("POST", "/v1/conversations", {})
        failed = await asking.stream("!echo fail_at=1\none two", conversation=talk["id"])
        assert failed["status"] == "failed"
        assert (await asking.ok("GET", f"/v1/conversations/{talk['id']}/items"))["data"] == []
        kept = await asking.get(failed["id"])
        assert kept == failed
        continued = ask("go on", previous_response_id=failed["id"])
        assert (await asking.error("POST", "/v1/responses", continued))[:2] == (400, "invalid_value")


async def test_a_response_of_a_conversation_is_continued_from_where_it_stood(serving) -> None:
    engine = played(EchoScript())
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        talk = await asking.ok("POST", "/v1/conversations", {})
        first = await asking.create("one", conversation=talk["id"])
        again = [*first["output"], {"role": "user", "content": "two"}]
        second = await asking.create(again, conversation=talk["id"])
        await asking.create("three", conversation=talk["id"])
        await asking.create("other", previous_response_id=second["id"])
        said = [content for _, content, *_ in said_to(engine)]
        assert said[:2] == ["one", "one"]
        assert said[-3:] == ["two", "two", "other"]
        assert "three" not in said
        await asking.ok("DELETE", f"/v1/conversations/{talk['id']}")
        lost = ask("more", previous_response_id=second["id"])
        assert (await asking.error("POST", "/v1/responses", lost))[1] == "previous_response_not_found"
        assert (await asking.get(second["id"]))["id"] == second["id"]


async def test_an_earlier_answer_that_failed_or_was_cut_is_continued_with_what_it_said(serving) -> None:
    engine = played(
        EchoScript(reply="one two three", calls=(ScriptedCall("weather", '{"city": "Oslo"}'),)),
        EchoScript(reply="ok"),
    )
    async with serving(engine, storage=MEMORY) as served:
        asking = Asking(served.http)
        cut = await asking.create("count", tools=[WEATHER], max_output_tokens=4)
        assert cut["output"][-1]["status"] == "incomplete"
        await asking.create("go on", previous_response_id=cut["id"])
        assert said_to(engine)[1] == plain("assistant", "one two three"), "half a call is no call"
        failed = await asking.stream("!echo fail_at=2\ncount")
        await asking.create("go on", previous_response_id=failed["id"])
        assert said_to(engine)[1] == plain("assistant", "one two")


async def test_a_missing_link_is_told(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        first = await asking.create("one")
        second = await asking.create("two", previous_response_id=first["id"])
        deleted = await asking.ok("DELETE", f"/v1/responses/{first['id']}")
        assert deleted == {"id": first["id"], "object": "response", "deleted": True}
        lost = await asking.call("POST", "/v1/responses", ask("three", previous_response_id=second["id"]))
        assert lost.status_code == 404
        assert f"{first['id']!r} is gone" in lost.json()["error"]["message"]
        assert text_of(await asking.get(second["id"])) == "two"


async def test_input_items_and_conversation_items_come_in_pages(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        sent = [{"role": "user", "content": f"line {number}"} for number in range(7)]
        response = await asking.create(sent)
        talk = await asking.ok("POST", "/v1/conversations", {"items": sent})
        paths = (f"/v1/responses/{response['id']}/input_items", f"/v1/conversations/{talk['id']}/items")
        for path in paths:
            for order in ("asc", "desc"):
                seen, after = [], {}
                while True:
                    page = await asking.ok("GET", path, limit=3, order=order, **after)
                    assert page["object"] == "list"
                    assert (page["first_id"], page["last_id"]) == (
                        page["data"][0]["id"],
                        page["data"][-1]["id"],
                    )
                    seen += [item["content"][0]["text"] for item in page["data"]]
                    if not page["has_more"]:
                        break
                    after = {"after": page["last_id"]}
                expected = [f"line {number}" for number in range(7)]
                assert seen == (expected if order == "asc" else expected[::-1])
            assert await asking.error("GET", path, after="nobody") == (404, "item_not_found", "after")
            for query in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "sideways"}):
                status, code, param = await asking.error("GET", path, **query)
                assert (status, code, param) == (400, "invalid_value", *query)


async def test_a_page_of_large_items_is_cut_short_and_nothing_is_lost(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        talk = await asking.ok("POST", "/v1/conversations", {})
        path = f"/v1/conversations/{talk['id']}/items"
        for number in range(5):
            large = {"role": "user", "content": f"{number}" + "x" * (5 * 2**20)}
            await asking.ok("POST", path, {"items": [large]})
        first = await asking.ok("GET", path, order="asc", limit=100)
        rest = await asking.ok("GET", path, order="asc", limit=100, after=first["last_id"])
    assert (len(first["data"]), first["has_more"]) == (3, True)
    assert (len(rest["data"]), rest["has_more"]) == (2, False)


async def test_items_of_a_conversation_are_added_read_and_deleted(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        talk = await asking.ok("POST", "/v1/conversations", {})
        path = f"/v1/conversations/{talk['id']}"
        twice = [
            {"role": "user", "content": "a", "id": "msg_mine"},
            {"role": "user", "content": "b", "id": "msg_mine"},
        ]
        await asking.ok("POST", f"{path}/items", {"items": twice})
        added = await asking.ok("POST", f"{path}/items", {"items": [{"role": "user", "content": "c"}]})
        held = (await asking.ok("GET", f"{path}/items", order="asc"))["data"]
        assert [item["content"][0]["text"] for item in held] == ["a", "c"], "an id names one item"
        assert await asking.ok("GET", f"{path}/items/msg_mine") == held[0]
        assert (await asking.ok("DELETE", f"{path}/items/msg_mine"))["id"] == talk["id"]
        assert (await asking.error("GET", f"{path}/items/msg_mine"))[1] == "item_not_found"
        changed = await asking.ok("POST", path, {"metadata": {"a": "b"}})
        assert changed == await asking.ok("GET", path) == talk | {"metadata": {"a": "b"}}
        assert (await asking.ok("GET", f"{path}/items"))["data"] == added["data"]
        assert (await asking.ok("DELETE", path))["object"] == "conversation.deleted"
        assert await asking.error("GET", path) == (404, "conversation_not_found", None)
        gone = ask("hi", conversation=talk["id"])
        assert await asking.error("POST", "/v1/responses", gone) == (
            404,
            "conversation_not_found",
            "conversation",
        )


async def test_a_conversation_deleted_while_it_is_answered_takes_only_itself(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        talk = await asking.ok("POST", "/v1/conversations", {})
        body = ask("!echo delay=0.05\none two three", conversation=talk["id"], background=True)
        begun = await asking.ok("POST", "/v1/responses", body)
        await asking.ok("DELETE", f"/v1/conversations/{talk['id']}")
        assert text_of(await asking.until(begun["id"], "completed")) == "one two three"
        assert (await asking.error("GET", f"/v1/conversations/{talk['id']}"))[0] == 404


async def test_a_response_deleted_while_it_is_streamed_stays_deleted(serving) -> None:
    async with serving(storage=MEMORY) as served:
        asking = Asking(served.http)
        body = ask("!echo delay=0.05\none two three", stream=True)
        async with served.http.stream("POST", "/v1/responses", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            response_id = (await anext(lines)).split('"id":"')[1].split('"')[0]
            assert (await asking.get(response_id))["status"] == "in_progress"
            continued = ask("and?", previous_response_id=response_id)
            assert (await asking.error("POST", "/v1/responses", continued))[:2] == (400, "invalid_value")
            await asking.ok("DELETE", f"/v1/responses/{response_id}")
            rest = [line async for line in lines]
        assert any("response.completed" in line for line in rest)
        assert (await asking.error("GET", f"/v1/responses/{response_id}"))[0] == 404


async def test_a_server_without_a_store_answers_and_keeps_nothing(serving) -> None:
    async with serving() as served:
        asking = Asking(served.http)
        response = await asking.stream("hi")
        assert response["store"] is False
        assert (await asking.error("GET", f"/v1/responses/{response['id']}"))[0] == 404
        assert (await asking.error("POST", "/v1/responses", ask("hi", background=True)))[2] == "background"
        assert await asking.error("POST", "/v1/conversations", {}) == (503, "engine_unavailable", None)


async def test_state_outlives_the_server(serving, tmp_path) -> None:
    from ganglion.server.life.storage import StoreTarget

    storage = StoreTarget(tmp_path / "ganglion.db")
    async with serving(storage=storage) as served:
        asking = Asking(served.http)
        first = await asking.create("one", include=["reasoning.encrypted_content"])
        compacted = await asking.ok("POST", "/v1/responses/compact", ask("remember the word fig"))
    engine = played(EchoScript())
    async with serving(engine, storage=storage) as served:
        asking = Asking(served.http)
        assert await asking.get(first["id"]) == first
        await asking.create("two", previous_response_id=first["id"])
        assert [content for _, content, *_ in said_to(engine)] == ["one", "one", "two"]
        await asking.create([*compacted["output"], {"role": "user", "content": "which word?"}])
        assert "fig" in said_to(engine)[0][1]
