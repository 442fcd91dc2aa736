"""What the test of Anthropic's tool runner runs, once for each major version of the SDK.

The played model calls the tool on its first turn and answers on its second. A runner whose loop does not end
is stopped by its bound.
"""

import asyncio
import sys
from typing import Any

import anthropic
from anthropic import beta_async_tool, beta_tool

url = sys.argv[1]
options = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": 20}
client = anthropic.Anthropic(**options, _strict_response_validation=True)
print(anthropic.__version__)
asked: list[str] = []
ask = {
    "model": "echo",
    "max_tokens": 400,
    "max_iterations": 5,
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
}


@beta_tool
def weather(city: str) -> str:
    """Say the weather.

    Args:
        city: Where.
    """
    asked.append(city)
    return "rain"


@beta_async_tool
async def weather_later(city: str) -> str:
    """Say the weather.

    Args:
        city: Where.
    """
    asked.append(city)
    return "rain"


weather_later.name = "weather"


def judge(final: Any, turns: int) -> None:
    assert final.content[-1].text == "It rains.", final
    assert final.stop_reason == "end_turn"
    assert asked == ["Oslo"], asked
    assert turns == 2, turns
    asked.clear()


messages = list(client.beta.messages.tool_runner(**ask, tools=[weather]))
judge(messages[-1], len(messages))

finals = []
for stream in client.beta.messages.tool_runner(**ask, tools=[weather], stream=True):
    kinds = [event.type for event in stream]
    assert kinds[-1] == "message_stop", kinds
    finals.append(stream.get_final_message())
judge(finals[-1], len(finals))


async def later() -> None:
    async with anthropic.AsyncAnthropic(**options, _strict_response_validation=True) as sdk:
        told = [message async for message in sdk.beta.messages.tool_runner(**ask, tools=[weather_later])]
        judge(told[-1], len(told))
        ends = []
        async for stream in sdk.beta.messages.tool_runner(**ask, tools=[weather_later], stream=True):
            async for event in stream:
                last = event.type
            assert last == "message_stop"
            ends.append(await stream.get_final_message())
        judge(ends[-1], len(ends))


asyncio.run(later())

for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
    try:
        client.beta.messages.create(
            model="echo", max_tokens=9, messages=ask["messages"], extra_body={"thread": thread}
        )
    except anthropic.BadRequestError as error:
        assert error.body["error"]["details"]["error_code"] == "thread_unsupported_request"
    else:
        raise AssertionError("a thread was accepted")

# An unknown route is told in Anthropic's words, and its SDK reads the type and the message.
for call in (lambda: client.messages.batches.retrieve("x"), client.beta.files.list):
    try:
        call()
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error", error.body
        assert error.body["error"]["type"] == "not_found_error"
        assert error.body["request_id"] == error.request_id
    else:
        raise AssertionError("a route that is not there answered")
print("all accepted")
