"""Forced tools through the SDKs' own helpers and agent loops: each is called once, and the loop ends.

Run as a program with a node's URL and its model, so that either major of each SDK can be on the path.
"""

import sys
from typing import Literal

import anthropic
import openai
from anthropic import beta_tool
from pydantic import BaseModel, ConfigDict

URL, MODEL = sys.argv[1:]
ASKED = "What is the weather in Paris?"
# The newer major keeps a thread on the server where it can, and there a tool choice cannot change midway.
UNTHREADED: dict = {} if anthropic.__version__.startswith("1.") else {"thread": False}


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Oslo"]
    unit: Literal["c", "f"]


class Clock(BaseModel):
    """What a clock shows."""

    model_config = ConfigDict(extra="forbid")
    hours: Literal[1, 2, 3]


def chat_helpers(client: openai.OpenAI) -> None:
    """`parse` and `stream` of chat: a format, and a named tool."""
    asked = [{"role": "user", "content": ASKED}]
    parsed = client.chat.completions.parse(
        model=MODEL, messages=asked, response_format=Clock, max_completion_tokens=100
    )
    assert parsed.choices[0].message.parsed.hours in (1, 2, 3)

    tools = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Clock)]
    named = {"type": "function", "function": {"name": "Weather"}}
    called = client.chat.completions.parse(model=MODEL, messages=asked, tools=tools, tool_choice=named)
    assert called.choices[0].finish_reason == "tool_calls"
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)

    with client.chat.completions.stream(
        model=MODEL,
        messages=asked,
        tools=tools,
        tool_choice={"type": "function", "function": {"name": "Clock"}},
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.parsed_arguments.hours in (1, 2, 3)


def responses_helpers(client: openai.OpenAI) -> None:
    """`parse` of Responses: a format, and a named tool."""
    parsed = client.responses.parse(model=MODEL, input=ASKED, text_format=Clock, max_output_tokens=100)
    assert parsed.output_parsed.hours in (1, 2, 3)
    called = client.responses.parse(
        model=MODEL,
        input=ASKED,
        tools=[openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Clock)],
        tool_choice={"type": "function", "name": "Weather"},
    )
    assert called.status == "completed"
    (item,) = called.output
    assert (item.type, item.name) == ("function_call", "Weather")
    assert isinstance(item.parsed_arguments, Weather)


def chat_loop(client: openai.OpenAI) -> None:
    """A tool forced in the first turn, and its answer told in the second."""
    messages: list = [{"role": "user", "content": ASKED}]
    choice: object = {"type": "function", "function": {"name": "Weather"}}
    turns = []
    while len(turns) < 4:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice=choice,
            max_tokens=64,
            temperature=0,
        ).choices[0]
        turns.append(len(answer.message.tool_calls or ()))
        if answer.finish_reason != "tool_calls":
            break
        messages.append(answer.message.to_dict())
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 20 degrees."}
            for call in answer.message.tool_calls
        ]
        choice = "none"
    assert turns == [1, 0], turns


def anthropic_loop(client: anthropic.Anthropic) -> None:
    """The tool runner: the forced tool runs once, and the turn after it is the last."""
    ran = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        ran.append(city)
        return "Sunny, 20 degrees."

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=64,
        tools=[weather],
        tool_choice={"type": "tool", "name": "weather"},
        messages=[{"role": "user", "content": ASKED}],
        max_iterations=4,
        **UNTHREADED,
    )
    turns = []
    for message in runner:
        turns.append(message.stop_reason)
        assert sum(block.type == "tool_use" for block in message.content) == (len(turns) == 1)
        runner.set_messages_params(lambda params: {**params, "tool_choice": {"type": "none"}})
    assert turns[0] == "tool_use" and len(turns) == 2, turns
    assert len(ran) == 1


def main() -> None:
    print(openai.__version__, anthropic.__version__)
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=90) as client:
        chat_helpers(client)
        responses_helpers(client)
        chat_loop(client)
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=90) as client:
        anthropic_loop(client)
    print("all called once")


if __name__ == "__main__":
    main()
