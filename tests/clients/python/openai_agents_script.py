"""openai-agents: an Agent with a function tool over chat, Responses, and Responses on a WebSocket."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from scenes import main, scene

MODELS = {
    "chat": OpenAIChatCompletionsModel,
    "responses": OpenAIResponsesModel,
    "websocket": OpenAIResponsesWSModel,
}


class City(BaseModel):
    name: str
    people: int


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def agent(url: str, wire: str, **options: object) -> Agent:
    client = AsyncOpenAI(
        base_url=url + "/v1", api_key="none", max_retries=0, timeout=20, _strict_response_validation=True
    )
    return Agent(name="guide", instructions="Be brief.", model=MODELS[wire]("echo", client), **options)


def stream(wire: str) -> None:
    @scene(f"{wire}: stream")
    async def play(url: str, name: str) -> object:
        settings = ModelSettings(include_usage=True)
        run = Runner.run_streamed(agent(url, wire, model_settings=settings), name)
        deltas, items = [], []
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas.append(event.data.delta)
            if event.type == "run_item_stream_event":
                items.append(event.name)
        usage = run.context_wrapper.usage
        return {"deltas": deltas, "items": items, "final": run.final_output, "usage": usage.output_tokens}


def structured(wire: str) -> None:
    @scene(f"{wire}: city")
    async def play(url: str, name: str) -> object:
        run = await Runner.run(agent(url, wire, output_type=City), name)
        assert isinstance(run.final_output, City)
        return run.final_output.model_dump()


def forced(wire: str) -> None:
    @scene(f"{wire}: must call")
    async def play(url: str, name: str) -> object:
        settings = ModelSettings(
            tool_choice="weather", parallel_tool_calls=False, temperature=0.5, max_tokens=99
        )
        run = await Runner.run(agent(url, wire, tools=[weather], model_settings=settings), name)
        return run.final_output


def turns(wire: str, *, is_streamed: bool) -> None:
    @scene(f"{wire}: three {'streamed' if is_streamed else 'whole'} turns")
    async def play(url: str, name: str) -> object:
        guide = agent(url, wire, tools=[weather])
        history: list[object] = []
        finals = []
        for said in (name, "What shall I take?", "Thanks."):
            history = [*history, {"role": "user", "content": said}]
            if is_streamed:
                run = Runner.run_streamed(guide, history)
                async for _ in run.stream_events():
                    pass
            else:
                run = await Runner.run(guide, history)
            history = run.to_input_list()
            finals.append(run.final_output)
        kinds = [item.get("type", "message") for item in history]
        return {"finals": finals, "kinds": kinds}


def chained(wire: str) -> None:
    @scene(f"{wire}: three chained turns")
    async def play(url: str, name: str) -> object:
        guide = agent(url, wire, tools=[weather])
        finals, previous = [], None
        for said in (name, "What shall I take?", "Thanks."):
            run = await Runner.run(guide, said, previous_response_id=previous, auto_previous_response_id=True)
            previous = run.last_response_id
            finals.append(run.final_output)
        return finals


@scene("responses: a conversation")
async def conversation(url: str, name: str) -> object:
    guide = agent(url, "responses", tools=[weather])
    client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    held = await client.conversations.create()
    finals = []
    for said in (name, "What shall I take?", "Thanks."):
        run = await Runner.run(guide, said, conversation_id=held.id)
        finals.append(run.final_output)
    items = [item.type async for item in client.conversations.items.list(held.id, order="asc")]
    return {"finals": finals, "items": items}


for wire in MODELS:
    stream(wire)
    structured(wire)
    forced(wire)
    turns(wire, is_streamed=False)
    turns(wire, is_streamed=True)
for wire in ("responses", "websocket"):
    chained(wire)
main()
