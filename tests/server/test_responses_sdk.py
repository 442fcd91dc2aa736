"""The official SDK, with strict validation, on every stateful route of the Responses wire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from responding import ENDLESS, MEMORY, played, said_to

from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from support.played_engine import PlayedEngine

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@asynccontextmanager
async def client(serving, engine: PlayedEngine | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(engine, storage=MEMORY) as served,
        openai.AsyncOpenAI(
            base_url=served.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True
        ) as found,
    ):
        yield found


async def test_a_tool_round_trip_by_previous_response_id(serving) -> None:
    engine = played(
        EchoScript(reasoning="hm", calls=(ScriptedCall("weather", '{"city":"Oslo"}'),)),
        EchoScript(reply="Rain."),
    )
    async with client(serving, engine) as sdk:
        first = await sdk.responses.create(model="echo", input="Oslo?", tools=[WEATHER])
        (called,) = (item for item in first.output if isinstance(item, ResponseFunctionToolCall))
        output = {"type": "function_call_output", "call_id": called.call_id, "output": "wet"}
        async with sdk.responses.stream(
            model="echo", input=[output], tools=[WEATHER], previous_response_id=first.id
        ) as stream:
            second = await stream.get_final_response()
    assert second.output_text == "Rain."
    assert second.previous_response_id == first.id
    assert [role for role, *_ in said_to(engine)] == ["user", "assistant", "tool"]


async def test_retrieve_list_and_delete(serving) -> None:
    async with client(serving) as sdk:
        sent = [{"role": "user", "content": f"line {number}"} for number in range(5)]
        made = await sdk.responses.create(model="echo", input=sent)
        assert await sdk.responses.retrieve(made.id) == made
        listed = [item async for item in sdk.responses.input_items.list(made.id, limit=2, order="asc")]
        assert [item.content[0].text for item in listed] == [f"line {number}" for number in range(5)]
        assert await sdk.responses.delete(made.id) is None
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.responses.retrieve(made.id)
        assert caught.value.code == "response_not_found"


async def test_background_is_followed_resumed_and_cancelled(serving) -> None:
    async with client(serving) as sdk:
        begun = await sdk.responses.create(model="echo", input="one two three", background=True)
        assert begun.status == "queued"
        events = [event async for event in await sdk.responses.retrieve(begun.id, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        later = await sdk.responses.retrieve(begun.id, stream=True, starting_after=4)
        assert [event async for event in later] == events[5:]
        stream = await sdk.responses.create(model="echo", input=ENDLESS, background=True, stream=True)
        first = await anext(stream)
        assert first.type == "response.created"
        cancelled = await sdk.responses.cancel(first.response.id)
        rest = [event async for event in stream]
        assert rest[-1].type == "response.incomplete"
        assert rest[-1].response.status == cancelled.status == "cancelled"


async def test_counting_and_compacting(serving) -> None:
    engine = played(EchoScript(reply="It was about figs."))
    async with client(serving, engine) as sdk:
        made = await sdk.responses.create(model="echo", input="figs?", instructions="Be brief.")
        counted = await sdk.responses.input_tokens.count(
            model="echo", input="figs?", instructions="Be brief."
        )
        assert made.usage is not None
        assert counted.input_tokens == made.usage.input_tokens
        # The SDK's own type of this list has no room for the user's messages that the API puts there.
        async with openai.AsyncOpenAI(base_url=sdk.base_url, api_key="none") as lenient:
            compacted = await lenient.responses.compact(model="echo", previous_response_id=made.id)
        assert [item.type for item in compacted.output] == ["message", "compaction"]
        assert compacted.usage.output_tokens > 0
        items = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
        await sdk.responses.create(model="echo", input=[*items, {"role": "user", "content": "more?"}])
        assert [content for _, content, *_ in said_to(engine)][-1] == "more?"
        assert said_to(engine)[1][1].endswith("figs.")


async def test_conversations(serving) -> None:
    async with client(serving) as sdk:
        talks = sdk.conversations
        made = await talks.create(items=[{"role": "user", "content": "hello"}], metadata={"a": "1"})
        assert made.metadata == {"a": "1"}
        changed = await talks.update(made.id, metadata={"a": "2"})
        assert await talks.retrieve(made.id) == changed
        response = await sdk.responses.create(model="echo", input="and you?", conversation=made.id)
        assert response.conversation is not None
        assert response.conversation.id == made.id
        added = await talks.items.create(made.id, items=[{"role": "assistant", "content": "bye"}])
        listed = [item async for item in talks.items.list(made.id, limit=2, order="asc")]
        assert [item.content[0].text for item in listed] == ["hello", "and you?", "and you?", "bye"]
        one = await talks.items.retrieve(added.data[0].id, conversation_id=made.id)
        assert one == added.data[0]
        assert (await talks.items.delete(one.id, conversation_id=made.id)).id == made.id
        assert (await talks.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await talks.retrieve(made.id)


async def test_items_of_every_kind_are_listed(serving) -> None:
    script = EchoScript(
        reasoning="hm", reply="so", calls=(ScriptedCall("weather"), ScriptedCall("patch", "x"))
    )
    async with client(serving, played(script)) as sdk:
        made = await sdk.conversations.create()
        tools = [WEATHER, {"type": "custom", "name": "patch"}]
        first = await sdk.responses.create(model="echo", input="go", tools=tools, conversation=made.id)
        function, custom = first.output[2:]
        outputs = [
            {"type": "function_call_output", "call_id": function.call_id, "output": "wet"},
            {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "done"},
        ]
        second = await sdk.responses.create(model="echo", input=outputs, tools=tools, conversation=made.id)
        kinds = [item.type async for item in sdk.conversations.items.list(made.id, order="asc")]
        asked = [item.type async for item in sdk.responses.input_items.list(second.id, order="asc")]
    said = ["reasoning", "message", "function_call", "custom_tool_call"]
    assert asked == ["function_call_output", "custom_tool_call_output"]
    assert kinds == ["message", *said, *asked, *said]


async def test_a_socket(serving) -> None:
    async with client(serving) as sdk, sdk.responses.connect() as connection:
        previous: dict[str, str] = {}
        for turn in range(3):
            await connection.response.create(model="echo", input=f"turn {turn}", store=False, **previous)
            texts: list[str] = []
            async for event in connection:
                if event.type == "response.output_text.delta":
                    texts.append(event.delta)
                if event.type == "response.completed":
                    previous = {"previous_response_id": event.response.id}
                    break
            assert "".join(texts) == f"turn {turn}"
        await connection.response.create(model="nobody", input="hi")
        refused = await connection.recv()
        assert refused.type == "error"
        assert (refused.status, refused.error.code) == (404, "model_not_found")
