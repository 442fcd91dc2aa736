"""pydantic-ai: an Agent with a tool and output of a type over chat, Responses, its WebSocket and Messages."""

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from scenes import main, scene

WIRES = ("chat", "responses", "websocket", "messages")
STRICT = {"api_key": "none", "max_retries": 0, "timeout": 20, "_strict_response_validation": True}
OF_ANY_MODEL = {"supports_json_schema_output": True, "supports_inline_system_prompts": True}
"""The node can do this whatever the model's name is; the library knows it of Claude only."""


class City(BaseModel):
    name: str
    people: int


def model(url: str, wire: str) -> Model:
    if wire == "messages":
        provider = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, **STRICT))
        return AnthropicModel("echo", provider=provider, profile=OF_ANY_MODEL)
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url + "/v1", **STRICT))
    if wire == "chat":
        return OpenAIChatModel("echo", provider=provider)
    settings = {"openai_transport": "websocket"} if wire == "websocket" else {}
    return OpenAIResponsesModel("echo", provider=provider, settings=settings)


def agent(url: str, wire: str, **options: object) -> Agent:
    return Agent(model(url, wire), instructions="Be brief.", **options)


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def stream(wire: str) -> None:
    @scene(f"{wire}: stream")
    async def play(url: str, name: str) -> object:
        async with agent(url, wire).run_stream(name) as run:
            deltas = [delta async for delta in run.stream_text(delta=True, debounce_by=None)]
        last = run.all_messages()[-1]
        kinds = [(part.part_kind, part.content) for part in last.parts]
        raw = (last.parts[0].provider_details or {}).get("raw_content")
        return {"deltas": deltas, "parts": kinds, "raw": raw, "usage": run.usage.output_tokens}


def structured(wire: str) -> None:
    @scene(f"{wire}: city by a tool")
    async def by_tool(url: str, name: str) -> object:
        run = await agent(url, wire, output_type=City).run(name)
        assert isinstance(run.output, City)
        return run.output.model_dump()

    @scene(f"{wire}: city by its schema")
    async def by_schema(url: str, name: str) -> object:
        async with agent(url, wire, output_type=NativeOutput(City)).run_stream(name) as run:
            city = await run.get_output()
        return city.model_dump()


def turns(wire: str, *, is_streamed: bool) -> None:
    @scene(f"{wire}: three {'streamed' if is_streamed else 'whole'} turns")
    async def play(url: str, name: str) -> object:
        guide = agent(url, wire, tools=[weather])
        history: list[ModelMessage] = []
        finals = []
        for said in (name, "What shall I take?", "Thanks."):
            if is_streamed:
                # `run_stream` would take the first text for the answer, call or no call.
                async with guide.iter(said, message_history=history) as run:
                    async for node in run:
                        if Agent.is_model_request_node(node):
                            async with node.stream(run.ctx) as events:
                                async for _ in events:
                                    pass
                result = run.result
            else:
                result = await guide.run(said, message_history=history)
            history = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
            finals.append(result.output)
        return finals


@scene("responses: three chained turns")
async def chained(url: str, name: str) -> object:
    settings = {"openai_previous_response_id": "auto"}
    guide = agent(url, "responses", tools=[weather], model_settings=settings)
    history: list[ModelMessage] = []
    finals = []
    for said in (name, "What shall I take?", "Thanks."):
        run = await guide.run(said, message_history=history)
        history = run.all_messages()
        finals.append(run.output)
    return finals


for wire in WIRES:
    stream(wire)
    structured(wire)
    turns(wire, is_streamed=False)
    turns(wire, is_streamed=True)
main()
